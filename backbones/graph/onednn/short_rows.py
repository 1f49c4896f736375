"""Convolutions of many channels over maps of short rows, in parts of their input channels.

oneDNN 2.4 multiplies one row of pixels at a time. It chooses by a model of the caches how many
output channels it computes together. Where there are many input channels and few pixels in a row it
chooses 16, and then a processor waits for one sum before it can go on with the next: 512 to 512
channels at 4 x 4 have half the speed of 256 to 256 at 8 x 8, which are as many products. With fewer
input channels it chooses 32. A convolution is the sum of those of parts of its input, and
oneDNN adds each to the sum of those before it in place (``backbones.graph.onednn.joining``):

    K x = K[:, :n] x[:n] + K[:, n:] x[n:]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Optional

from backbones.graph.nodes import Entry, NewNodes, Node, Shape, consumers, moved
from backbones.graph.onednn.constants import Reduced

_LONGEST = 4
"""Pixels of a row. At 5, 512 channels are as fast at once as in parts."""
_CHANNELS = 256
"""Input channels of a part, at most."""


def divide(graph: Reduced, shapes: Mapping[str, Shape]) -> Reduced:
    """Return a graph for inference with its convolutions of many channels over short rows divided.

    Args:
        graph: nodes that depend on the input, and the kernels, float32.
        shapes: of the outputs of the graph's convolutions and of their inputs, by node.
    """
    dividing = _Dividing(graph, shapes)
    for index in range(len(graph.nodes)):
        dividing.add_again(index)
    return dividing.result()


class _Dividing(NewNodes):
    """The nodes of the new graph, made in the order of those of the given one."""

    def __init__(self, graph: Reduced, shapes: Mapping[str, Shape]) -> None:
        super().__init__()
        self._given, self._heads, self._values = graph.nodes, graph.heads, dict(graph.values)
        self._shapes = shapes
        self._consumers = consumers(graph.nodes, graph.heads, any_input=True)
        self._indices: dict[int, int] = {}
        # Convolutions that are to be added to the other input of the sum behind them.
        self._waiting: set[int] = set()

    def add_again(self, index: int) -> None:
        """Append what stands for a node of the given graph."""
        node = self._given[index]
        if self._is_slow(node):
            if self._is_added(index):
                self._waiting.add(index)
                return
            made = self._append_parts(index, node["name"], None)
        elif waiting := [entry[0] for entry in node["inputs"] if entry[0] in self._waiting]:
            # Of two, one is computed first.
            for source in waiting[1:]:
                name = self._given[source]["name"]
                self._indices[source] = self._append_parts(source, name, None)
            (other,) = (entry for entry in node["inputs"] if entry[0] != waiting[0])
            total = moved(other, self._indices)
            made = self._append_parts(waiting[0], node["name"], total)
        else:
            made = self.add({**node, "inputs": [*map(self._moved, node["inputs"])]})
        self._indices[index] = made

    def result(self) -> Reduced:
        """Return the new graph."""
        return Reduced(self.nodes, [*map(self._moved, self._heads)], self._values)

    def _is_slow(self, node: Node) -> bool:
        if node["op"] != "Convolution":
            return False
        maps, kernel, *_ = (self._given[entry[0]]["name"] for entry in node["inputs"])
        channels, *window = self._values[kernel].shape[1:] if kernel in self._values else (0,)
        return (
            channels > _CHANNELS
            and len(window) == 2
            and math.prod(window) > 1
            # One with groups has fewer channels in its kernel than in its input.
            and channels == self._shapes[maps][1]
            and self._shapes[node["name"]][3] <= _LONGEST
        )

    def _is_added(self, index: int) -> bool:
        """Whether a sum of two tensors is all that a node is for."""
        found = self._consumers.get(index, [])
        return len(found) == 1 and found[0] >= 0 and self._given[found[0]]["op"] == "elemwise_add"

    def _append_parts(self, index: int, name: str, total: Optional[Entry]) -> int:
        """Append a convolution in parts, added to ``total``; returns the node of the sum."""
        node = self._given[index]
        maps, kernel, *bias = node["inputs"]
        source, weights = self._given[maps[0]]["name"], self._given[kernel[0]]["name"]
        channels = self._shapes[source][1]
        size = math.ceil(channels / math.ceil(channels / _CHANNELS))
        for first in range(0, channels, size):
            stop, part = min(first + size, channels), f"{node['name']}_from{first}"
            some = {"begin": f"(None, {first})", "end": f"(None, {stop})"}
            cut = self.operator("slice", f"{part}_input", [self._moved(maps)], **some)
            self._values[f"{part}_weight"] = self._values[weights][:, first:stop].copy()
            own = self.add({"op": "null", "name": f"{part}_weight", "inputs": []})
            # The shift is added once.
            shift = [] if first else [*map(self._moved, bias)]
            inputs = [cut, [own, 0, 0], *shift]
            attributes = {**node["attrs"], "no_bias": str(not shift)}
            made = self.operator("Convolution", part, inputs, **attributes)
            if total is not None:
                added = name if stop == channels else f"{part}_sum"
                made = self.operator("elemwise_add", added, [made, total])
            total = made
        return made[0]

    def _moved(self, entry: Entry) -> Entry:
        return moved(entry, self._indices)
