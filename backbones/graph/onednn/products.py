"""Products of maps and a number for each of them, as squeeze-and-excitation has them.

MXNet computes the gradient of such a number, a sum over one map, in a loop that takes four times as
long as all that is around it. Here a linear layer of oneDNN, whose kernel is ones, spreads the
number over the map: its backward pass is that sum. Factors are [N, C, 1, 1] to maps [N, C, H, W].
"""

from __future__ import annotations

from typing_extensions import override

from backbones.graph.nodes import Entry, Rewriter, Shape, from_json, parsed
from backbones.graph.onednn.channels import has_maps
from backbones.layers import Symbol


def rewrite(symbol: Symbol, batch_shape: Shape) -> Symbol:
    """Return the graph with products of maps by linear layers.

    Parameters, names of outputs, outputs and gradients are the same. The number of images in
    ``batch_shape``, of the input ``data``, does not matter.
    """
    return from_json(_Spreading(*parsed(symbol, batch_shape)).rewrite())


class _Spreading(Rewriter):
    """The graph with numbers spread over their maps."""

    @override
    def make(self, index: int) -> int:
        node = self.given[index]
        if node["op"] == "broadcast_mul":
            maps, factors = (self.input_shape(index, number) for number in range(2))
            # One number for each map, of all images, and maps of more than one pixel.
            if has_maps(maps) and factors == (*maps[:2], 1, 1):
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
