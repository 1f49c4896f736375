"""Convolutions joined with the sum and the activation behind them, as oneDNN computes them at once.

oneDNN can add a convolution to what its output array holds, and apply a function to the result
while that is in registers. MXNet has an operator for this, ``_sg_mkldnn_conv``, and a pass that
puts it into a graph. That pass joins a convolution with an activation also where the sum behind it
needs the convolution itself (MXNet 1.9.1), so the operators are written here.

The operator keeps the kernel in oneDNN's layout, and its primitive, from the first call on: a graph
with it is for inference, with weights that do not change. MXNet makes its operators anew for images
of another shape.
"""

from __future__ import annotations

from typing import Any

from backbones.graph.nodes import Graph, Node, moved, only_consumers
from backbones.graph.onednn.channels import is_bend


def join(graph: Graph) -> Graph:
    """Return a graph with every convolution, sum and activation joined."""
    nodes, chains = graph["nodes"], _chains(graph)
    inner = {index for chain in chains.values() for index in chain[:-1]}
    joined: list[Node] = []
    indices: dict[int, int] = {}
    for index, node in enumerate(nodes):
        if index in inner:
            continue
        made = node
        if index in chains:
            made = _operator([nodes[i] for i in chains[index]], chains[index])
        inputs = [moved(entry, indices) for entry in made["inputs"]]
        indices[index] = len(joined)
        joined.append({**made, "inputs": inputs})
    heads = [moved(entry, indices) for entry in graph["heads"]]
    return {**graph, "nodes": joined, "heads": heads}


def _chains(graph: Graph) -> dict[int, list[int]]:
    """Return the nodes of each operator, beginning with a convolution, by the index of the last."""
    nodes, only = graph["nodes"], only_consumers(graph, any_input=True)
    chains: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        before = [entry[0] for entry in node["inputs"]]
        if node["op"] == "Convolution":
            chains[index] = [index]
        elif node["op"] == "elemwise_add":
            # Of two convolutions the one that is computed last adds to the other's output.
            for source in sorted(before, reverse=True):
                if only.get(source) == index and len(chains.get(source, ())) == 1:
                    chains[index] = [*chains.pop(source), index]
                    break
        elif is_bend(node) and only.get(before[0]) == index and before[0] in chains:
            if not is_bend(nodes[before[0]]):
                chains[index] = [*chains.pop(before[0]), index]
    return chains


def _operator(chain: list[Node], indices: list[int]) -> Node:
    """Return the operator that stands for a convolution and what is behind it."""
    inputs, summed = list(chain[0]["inputs"]), False
    inner: list[Node] = [{"op": "null", "name": f"in{i}", "inputs": []} for i in range(len(inputs))]
    inner.append({**chain[0], "inputs": [[i, 0, 0] for i in range(len(inputs))]})
    attributes = {}
    for before, node in zip(indices, chain[1:]):
        entries = [[len(inner) - 1, 0, 0]]
        if node["op"] == "elemwise_add":
            (other,) = (entry for entry in node["inputs"] if entry[0] != before)
            inputs.append(other)
            inner.append({"op": "null", "name": "sum", "inputs": []})
            entries.append([len(inner) - 1, 0, 0])
            attributes["with_sum"], summed = "true", True
        else:
            attributes["with_postsum_act" if summed else "with_act"] = "true"
        inner.append({**node, "inputs": entries})
    variables = [i for i, node in enumerate(inner) if node["op"] == "null"]
    subgraph: dict[str, Any] = {"nodes": inner, "arg_nodes": variables}
    subgraph["heads"] = [[len(inner) - 1, 0, 0]]
    return {
        "op": "_sg_mkldnn_conv",
        "name": chain[-1]["name"],
        "attrs": attributes,
        "inputs": inputs,
        "subgraphs": [subgraph],
    }
