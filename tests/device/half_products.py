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
    graph, internals = to_json(symbol), symbol.get_internals()
    _, outputs, _ = internals.infer_type(data="float32")
    types = dict(zip(internals.list_outputs(), outputs))
    nodes: list[Node] = []
    indices: dict[int, int] = {}

    def cast(name: str, dtype: str, entry: list[int]) -> list[int]:
        attributes = {"dtype": dtype}
        nodes.append({"op": "Cast", "name": name, "attrs": attributes, "inputs": [entry]})
        return [len(nodes) - 1, 0, 0]

    for index, node in enumerate(graph["nodes"]):
        name, inputs = node["name"], [moved(entry, indices) for entry in node["inputs"]]
        dtype = next(types[f"{name}{end}"] for end in _ENDS if f"{name}{end}" in types)
        if node["op"] == "null":
            # A cast does not tell the type of what it reads.
            number = str(mx.nd.ndarray._DTYPE_NP_TO_MX[dtype])
            node = {**node, "attrs": {**node.get("attrs", {}), "__dtype__": number}}
        widened = _WIDENED.get(node["op"], 0) if dtype == np.float16 else 0
        for place, entry in enumerate(inputs[:widened]):
            inputs[place] = cast(f"{name}_wide{place}", "float32", entry)
        nodes.append({**node, "inputs": inputs})
        if widened:
            cast(f"{name}_half", "float16", [len(nodes) - 1, 0, 0])
        indices[index] = len(nodes) - 1
    heads = [moved(entry, indices) for entry in graph["heads"]]
    return from_json({**graph, "nodes": nodes, "heads": heads})
