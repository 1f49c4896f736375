"""MXNet's graphs as JSON, for the modules that check, rewrite and cut them."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Optional

from backbones.layers import Symbol
from runtime.mxnet import mx

Node = dict[str, Any]
"""``op`` ("null" for a variable), ``name``, ``attrs``, and ``inputs``, a list of entries."""
Entry = list[int]
"""An output of a node: [index of the node, number of the output, version]."""
Shape = tuple[int, ...]


class NewNodes:
    """The nodes of a new graph; each is appended after its inputs.

    Attributes:
        nodes: those that are there already.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, node: Node) -> int:
        """Append a node; returns its index."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def operator(self, op: str, name: str, inputs: list[Entry], **attributes: Any) -> Entry:
        """Append an operator; returns its output. MXNet takes attributes that are strings."""
        return [self.add({"op": op, "name": name, "attrs": attributes, "inputs": inputs}), 0, 0]


def to_json(symbol: Symbol) -> dict[str, Any]:
    """Return ``nodes``, each after its inputs, ``heads`` (the outputs' entries), and ``attrs``."""
    # By default MXNet leaves out the casts to bfloat16.
    graph: dict[str, Any] = json.loads(symbol.tojson(remove_amp_cast=False))
    return graph


def from_json(nodes: list[Node], heads: list[Entry], attrs: Optional[dict[str, Any]]) -> Symbol:
    """Return the graph of ``nodes`` whose outputs are ``heads``."""
    variables = [index for index, node in enumerate(nodes) if node["op"] == "null"]
    graph: dict[str, Any] = {"nodes": nodes, "arg_nodes": variables, "heads": heads}
    if attrs is not None:
        graph["attrs"] = attrs
    return mx.sym.load_json(json.dumps(graph))


def moved(entry: Entry, indices: dict[int, int]) -> Entry:
    """Return an entry with the new index of its node."""
    return [indices[entry[0]], *entry[1:]]


def infer(symbol: Symbol, batch_shape: Shape) -> tuple[Any, Any, Any]:
    """Return the shapes of arguments, outputs and auxiliary states; None that are not determined.

    Raises:
        MXNetError: the nodes do not fit together, of which MXNet would also print four lines.
    """
    with contextlib.redirect_stdout(None):
        arguments, outputs, auxiliary = symbol.infer_shape(data=batch_shape)
    return arguments, outputs, auxiliary


def first_shapes(symbol: Symbol, batch_shape: Shape) -> dict[str, Shape]:
    """Return the shape of each variable and of the first output of each operator, by node.

    The shape of the input ``data``, ``batch_shape``, has to determine all others.
    """
    internals = symbol.get_internals()
    _, shapes, _ = internals.infer_shape(data=batch_shape)
    found = dict(zip(internals.list_outputs(), shapes))
    names = [node["name"] for node in to_json(symbol)["nodes"]]
    keys = {name: (name, f"{name}_output", f"{name}_output0") for name in names}
    return {name: next(found[key] for key in keys[name] if key in found) for name in names}


def consumers(
    nodes: list[Node], heads: list[Entry], *, any_input: bool = False
) -> dict[int, list[int]]:
    """Return the operators whose first input is the first output of each node, by index.

    Any other use, of another output, as an output of the graph, or as another input than the first
    (unless ``any_input``), is -1.
    """
    found: dict[int, list[int]] = {}
    for source, *_ in heads:
        found.setdefault(source, []).append(-1)
    for index, node in enumerate(nodes):
        for position, (source, output, *_) in enumerate(node["inputs"]):
            is_known = output == 0 and (position == 0 or any_input)
            found.setdefault(source, []).append(index if is_known else -1)
    return found
