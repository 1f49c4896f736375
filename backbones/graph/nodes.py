"""What MXNet's graphs look like as JSON, for those who read, rewrite or cut them."""

from __future__ import annotations

import json
from typing import Any

from backbones.layers import Symbol

Node = dict[str, Any]
"""``op`` ("null" for a variable), ``name``, ``attrs``; ``inputs``: [node, output, version] each."""
Shape = tuple[int, ...]

_ENDINGS = ("_output", "_output0")


def nodes_of(symbol: Symbol) -> list[Node]:
    """Return the nodes, every one after those that it reads."""
    found: list[Node] = json.loads(symbol.tojson())["nodes"]
    return found


def first_shapes(symbol: Symbol, batch_shape: Shape) -> dict[str, Shape]:
    """Return the shape of each variable and of the first output of each operator, by node.

    Args:
        symbol: a graph with the input ``data``, which leaves no shape open.
        batch_shape: that of the input.
    """
    internals = symbol.get_internals()
    _, shapes, _ = internals.infer_shape(data=batch_shape)
    found = dict(zip(internals.list_outputs(), shapes))
    names = [node["name"] for node in nodes_of(symbol)]
    possible = {name: (name, *(f"{name}{ending}" for ending in _ENDINGS)) for name in names}
    return {
        name: next(found[key] for key in keys if key in found) for name, keys in possible.items()
    }
