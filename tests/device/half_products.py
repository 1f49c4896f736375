"""float16 networks on a CPU, whose libraries multiply no float16 matrices.

Each convolution, linear layer and BatchNorm reads float16 arrays, computes in float32 and writes
float16, in the backward pass as well, as the tensor cores of a GPU do. All other operators compute
in float16 on a CPU, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import backbones
from backbones import classifiers
from backbones.graph.nodes import Node, from_json, moved, to_json
from backbones.layers import Symbol
from runtime.mxnet import mx
from tests.device.updates import ON_GPU

# Which inputs of an operator are float16; BatchNorm's parameters are not.
_WIDENED = {"Convolution": 3, "FullyConnected": 3, "BatchNorm": 1}
# Of a node's name, in those of its first output.
_ENDS = ("", "_output", "_output0")


def emulate_float16(patch: pytest.MonkeyPatch) -> None:
    """Have the registries build float16 networks that compute on a CPU; on a GPU they do."""

    def emulated(build: Callable[..., Symbol], *arguments: Any, **options: Any) -> Symbol:
        symbol = build(*arguments, **options)
        return _with_casts(symbol) if options.get("dtype") == "float16" else symbol

    for registry in () if ON_GPU else (backbones, classifiers):
        patch.setattr(registry, "build", partial(emulated, registry.build))


def _with_casts(symbol: Symbol) -> Symbol:
    """Return a float16 graph with the same parameters whose products compute in float32."""
    graph = to_json(symbol)
    internals = symbol.get_internals()
    _, outputs, _ = internals.infer_type(data="float32")
    types = dict(zip(internals.list_outputs(), outputs))
    types_of = {
        name: next(types[f"{name}{end}"] for end in _ENDS if f"{name}{end}" in types)
        for name in (node["name"] for node in graph["nodes"])
    }
    nodes: list[Node] = []
    indices: dict[int, int] = {}
    for index, node in enumerate(graph["nodes"]):
        inputs = [moved(entry, indices) for entry in node["inputs"]]
        if node["op"] == "null":
            # A cast does not tell the type of what it reads.
            number = str(mx.nd.ndarray._DTYPE_NP_TO_MX[types_of[node["name"]]])
            node = {**node, "attrs": {**node.get("attrs", {}), "__dtype__": number}}
        if node["op"] in _WIDENED and types_of[node["name"]] == np.float16:
            for place, entry in enumerate(inputs[: _WIDENED[node["op"]]]):
                nodes.append(_cast(f"{node['name']}_wide{place}", "float32", entry))
                inputs[place] = [len(nodes) - 1, 0, 0]
            nodes.append({**node, "inputs": inputs})
            nodes.append(_cast(f"{node['name']}_half", "float16", [len(nodes) - 1, 0, 0]))
        else:
            nodes.append({**node, "inputs": inputs})
        indices[index] = len(nodes) - 1
    heads = [moved(entry, indices) for entry in graph["heads"]]
    return from_json({**graph, "nodes": nodes, "heads": heads})


def _cast(name: str, dtype: str, entry: list[int]) -> Node:
    return {"op": "Cast", "name": name, "attrs": {"dtype": dtype}, "inputs": [entry]}
