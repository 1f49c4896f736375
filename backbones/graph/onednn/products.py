"""Products of maps and a number for each of them, as squeeze-and-excitation has them.

MXNet computes the gradient of such a number, a sum over one map, in a loop that takes four times as
long as all that is around it. Here a linear layer of oneDNN, whose kernel is ones, spreads the
number over the map: its backward pass is that sum. Factors are [N, C, 1, 1] to maps [N, C, H, W].
"""

from __future__ import annotations

from typing_extensions import override

from backbones.graph.nodes import Entry, Rewriter, Shape, first_shapes, from_json, to_json
from backbones.layers import Symbol

_MAPS = 4


def rewrite(symbol: Symbol, batch_shape: Shape) -> Symbol:
    """Return the graph with products of maps by linear layers.

    Parameters, names of outputs, outputs and gradients are the same. The number of images in
    ``batch_shape``, of the input ``data``, does not matter.
    """
    spreading = _Spreading(to_json(symbol), first_shapes(symbol, batch_shape))
    return from_json(spreading.rewrite())


class _Spreading(Rewriter):
    """The graph with numbers spread over their maps."""

    @override
    def make(self, index: int) -> int:
        node = self.given[index]
        if node["op"] == "broadcast_mul":
            maps, factors = (self.input_shape(index, number) for number in range(2))
            if _is_number_for_each_map(maps, factors):
                x, number = self.inputs(index)
                spread = self._spread(node["name"], number, maps)
                return self.operator("elemwise_mul", node["name"], [x, spread])[0]
        return super().make(index)

    def _spread(self, name: str, factors: Entry, maps: Shape) -> Entry:
        """Append maps of these factors [N, C, 1, 1]."""
        pixels = maps[2] * maps[3]
        column = self.operator("Reshape", f"{name}_column", [factors], shape=(-1, 1))
        ones = self.operator("_ones", f"{name}_ones", [], shape=(pixels, 1), dtype="float32")
        sizes = {"num_hidden": pixels, "no_bias": True}
        rows = self.operator("FullyConnected", f"{name}_rows", [column, ones], **sizes)
        return self.operator("Reshape", f"{name}_spread", [rows], shape=(-1, *maps[1:]))


def _is_number_for_each_map(maps: Shape, factors: Shape) -> bool:
    """Whether these are maps of more than one pixel, and one number for each of all images."""
    is_for_each = len(maps) == _MAPS and factors == (*maps[:2], 1, 1)
    return is_for_each and maps[2] * maps[3] > 1
