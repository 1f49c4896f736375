"""The part of a graph that depends on parameters alone, computed once.

In training, kernels are made of parameters anew in each pass: cast, padded, put on a diagonal.
Where the weights do not change, the results can be the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backbones.graph.nodes import Graph, Node, from_json, moved, to_json
from backbones.layers import Symbol
from runtime.mxnet import mx

_DATA, _UNUSED = "data", "constants_unused"


def compute(symbol: Symbol, values: Mapping[str, Any]) -> tuple[Graph, dict[str, Any]]:
    """Compute what does not depend on the input ``data``.

    Args:
        symbol: a graph; an operator that does not depend on the input has one output.
        values: NDArrays of its parameters, by name.

    Returns:
        The part of the graph that depends on its input, and the parameters that it reads.
    """
    graph = to_json(symbol)
    nodes: list[Node] = graph["nodes"]
    depends: list[bool] = []
    for node in nodes:
        depends.append(node["name"] == _DATA or any(depends[entry[0]] for entry in node["inputs"]))
    read = {
        entry[0]
        for index, node in enumerate(nodes)
        if depends[index]
        for entry in node["inputs"]
        if not depends[entry[0]]
    }
    made: list[Node] = []
    indices: dict[int, int] = {}
    for index, node in enumerate(nodes):
        if depends[index]:
            inputs = [moved(entry, indices) for entry in node["inputs"]]
            made.append({**node, "inputs": inputs})
        elif index in read:
            made.append({"op": "null", "name": node["name"], "inputs": []})
        else:
            continue
        indices[index] = len(made) - 1
    heads = [moved(entry, indices) for entry in graph["heads"]]
    computed = [index for index in sorted(read) if nodes[index]["op"] != "null"]
    own = {nodes[index]["name"]: values[nodes[index]["name"]] for index in read - set(computed)}
    if computed:
        # A CachedOp refuses a graph that reads nothing, so the last head is an input.
        unused: Node = {"op": "null", "name": _UNUSED, "inputs": []}
        part_heads = [[index, 0, 0] for index in (*computed, len(nodes))]
        part = from_json({**graph, "nodes": [*nodes, unused], "heads": part_heads})
        given = {**values, _UNUSED: mx.nd.zeros(1)}
        results = mx.nd.CachedOp(part)(*(given[name] for name in part.list_inputs()))
        own.update((nodes[index]["name"], value) for index, value in zip(computed, results))
    return {**graph, "nodes": made, "heads": heads}, own
