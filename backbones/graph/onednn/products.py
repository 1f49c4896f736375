"""Products of maps and a number for each of them, as squeeze-and-excitation has them.

MXNet computes the gradient of such a number, a sum over one map, in a loop that takes four times as
long as all that is around it. Here a linear layer of oneDNN, whose kernel is ones, spreads the
number over the map: its backward pass is that sum. Factors are [N, C, 1, 1] to maps [N, C, H, W].
"""

from __future__ import annotations

from typing import Any

from backbones.graph.nodes import Entry, Node, Shape, from_json, moved, to_json
from backbones.layers import Symbol

_MAPS = 4


def rewrite(symbol: Symbol, shapes: dict[str, Shape]) -> Symbol:
    """Return the graph with products of maps by linear layers.

    Parameters, names of outputs, outputs and gradients are the same.

    Args:
        symbol: a graph.
        shapes: of each node's first output.
    """
    graph = to_json(symbol)
    given: list[Node] = graph["nodes"]
    made: list[Node] = []
    indices: dict[int, int] = {}
    for index, node in enumerate(given):
        inputs = [moved(entry, indices) for entry in node["inputs"]]
        if node["op"] == "broadcast_mul":
            sizes = [shapes[given[entry[0]]["name"]] for entry in node["inputs"]]
            if _is_number_for_each_map(*sizes):
                inputs[1] = _spread(made, node["name"], inputs[1], sizes[0])
                node = {"op": "elemwise_mul", "name": node["name"]}
        indices[index] = len(made)
        made.append({**node, "inputs": inputs})
    return from_json(made, [moved(entry, indices) for entry in graph["heads"]], graph["attrs"])


def _is_number_for_each_map(maps: Shape, factors: Shape) -> bool:
    """Whether these are maps of more than one pixel, and one number for each of all images."""
    is_for_each = len(maps) == _MAPS and factors == (*maps[:2], 1, 1)
    return is_for_each and maps[2] * maps[3] > 1


def _spread(made: list[Node], name: str, factors: Entry, maps: Shape) -> Entry:
    """Append maps of these factors [N, C, 1, 1]."""
    pixels = maps[2] * maps[3]

    def operator(op: str, part: str, inputs: list[Entry], **attributes: Any) -> Entry:
        values = {key: str(value) for key, value in attributes.items()}
        made.append({"op": op, "name": f"{name}_{part}", "attrs": values, "inputs": inputs})
        return [len(made) - 1, 0, 0]

    column = operator("Reshape", "column", [factors], shape=(-1, 1))
    ones = operator("_ones", "ones", [], shape=(pixels, 1), dtype="float32")
    rows = operator("FullyConnected", "rows", [column, ones], num_hidden=pixels, no_bias=True)
    return operator("Reshape", "spread", [rows], shape=(-1, *maps[1:]))
