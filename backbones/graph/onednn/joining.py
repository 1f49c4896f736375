"""Convolutions joined with the sum and the activation behind them, some of them in parts.

oneDNN can add a convolution to what its output array holds, and apply a function to the result
while that is in registers. MXNet has an operator for this, ``_sg_mkldnn_conv``, and a pass that
puts it into a graph. That pass joins a convolution with an activation also where the sum behind it
needs the convolution itself (MXNet 1.9.1), so the operators are written here.

The operator keeps the kernel in oneDNN's layout, and its primitive, from the first call on: a graph
with it is for inference, with weights that do not change. MXNet makes its operators anew for images
of another shape.

Convolutions of many channels over maps of short rows are divided into parts of their input
channels. oneDNN 2.4 multiplies one row of pixels at a time. It chooses by a model of the caches how
many output channels it computes together. Where there are many input channels and few pixels in a
row it chooses 16, and then a processor waits for one sum before it can go on with the next: 512 to
512 channels at 4 x 4 have half the speed of 256 to 256 at 8 x 8, which are as many products. With
fewer input channels it chooses 32. A convolution is the sum of those of parts of its input, and
oneDNN adds each to the sum of those before it in place:

    K x = K[:, :n] x[:n] + K[:, n:] x[n:]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Optional

from typing_extensions import override

from backbones.graph.nodes import Entry, Graph, Node, Rewriter, Shape, moved, only_consumers
from backbones.graph.onednn.channels import is_bend

_LONGEST = 4
"""Pixels of a row. At 5, 512 channels are as fast at once as in parts."""
_CHANNELS = 256
"""Input channels of a part, at most."""


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


class Dividing(Rewriter):
    """A float32 graph with its convolutions of many channels over short rows divided.

    Attributes:
        values: NDArrays of its parameters.
    """

    def __init__(
        self, graph: Graph, shapes: Mapping[str, Shape], values: Mapping[str, Any]
    ) -> None:
        """Use shapes of the outputs and inputs of convolutions, and NDArrays of parameters."""
        super().__init__(graph, shapes)
        self.values = dict(values)

    @override
    def make(self, index: int) -> int:
        return self._append_parts(index) if self._is_slow(index) else super().make(index)

    def _is_slow(self, index: int) -> bool:
        node = self.given[index]
        if node["op"] != "Convolution":
            return False
        kernel = self.given[node["inputs"][1][0]]["name"]
        channels, *window = self.values[kernel].shape[1:] if kernel in self.values else (0,)
        return (
            channels > _CHANNELS
            and len(window) == 2
            and math.prod(window) > 1
            # One with groups has fewer channels in its kernel than in its input.
            and channels == self.input_shape(index)[1]
            and self.shape(index)[3] <= _LONGEST
        )

    def _append_parts(self, index: int) -> int:
        """Append a convolution in parts; returns the node of their sum."""
        node, channels = self.given[index], self.input_shape(index)[1]
        maps, kernel, *bias = self.inputs(index)
        weights = self.values[self.nodes[kernel[0]]["name"]]
        size = math.ceil(channels / math.ceil(channels / _CHANNELS))
        total: Optional[Entry] = None
        for first in range(0, channels, size):
            stop, part = min(first + size, channels), f"{node['name']}_from{first}"
            some = {"begin": (None, first), "end": (None, stop)}
            cut = self.operator("slice", f"{part}_input", [maps], **some)
            self.values[f"{part}_weight"] = weights[:, first:stop].copy()
            own = self.add({"op": "null", "name": f"{part}_weight", "inputs": []})
            # The shift is added once.
            inputs = [cut, [own, 0, 0], *([] if first else bias)]
            attributes = {**node["attrs"], "no_bias": len(inputs) == 2}
            made = self.operator("Convolution", part, inputs, **attributes)
            if total is not None:
                added = node["name"] if stop == channels else f"{part}_sum"
                made = self.operator("elemwise_add", added, [made, total])
            total = made
        assert total is not None, node
        return total[0]
