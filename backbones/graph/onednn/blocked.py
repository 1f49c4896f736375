"""Convolutions whose channels fill oneDNN's blocks, so that no layer falls to a reference kernel.

oneDNN keeps feature maps in blocks of as many channels as fit into a vector register: 8 with AVX2,
16 with AVX-512. Where the last block would not be full, it pads it, but MXNet refuses every
implementation whose arrays are larger than its own (``GetConvFwdImpl`` of ``mkldnn_convolution.cc``
and its counterparts), so that oneDNN goes on to kernels for smaller registers, with blocks of 8 or
4, and at last to a matrix product. Slower as they are, the real cost comes with the neighbors. A
BatchNorm has a fast backward pass only if maps and gradient have the same blocks
(``jit_uni_batch_normalization.cpp``); MXNet passes what comes, and oneDNN computes the others by
its reference implementation, which takes a hundred times as long.

So a convolution gets channels and groups that fill the blocks:

- Groups of too few channels are joined, k to one, whose kernel is block-diagonal. That is k times
  the arithmetic, in registers that are k times as full.
- Channels that are no multiple of a block are padded with zeros, and the kernel as well. Groups are
  padded by whole groups. Few channels, which padding would more than double, are left as they are.

The padding stays with the maps as long as the operators behind the convolution compute zeros of
zeros: BatchNorm, whose gamma and beta are padded as well, ReLU, sums and pooling. Passes that cut
it off and append it again took a third of a training step of RegNetX_200MF. Other operators get the
maps without it.

The parameters, their names and their gradients are those of the plain graph. But MXNet writes the
running statistics of a BatchNorm into variables, so those of padded maps are longer: the first of
their numbers are those of the plain graph (``backbones.network``).
"""

from __future__ import annotations

from typing_extensions import override

from backbones.graph.nodes import Entry, Node, Rewriter, Shape, to_json
from backbones.graph.onednn.channels import SUMS, Channels, has_maps, is_bend, joined_kernel
from backbones.layers import Symbol
from runtime import environment


def rewrite(symbol: Symbol, batch_shape: Shape, *, trains: bool = True) -> Symbol:
    """Return the graph with blocks of channels that are full, wherever a convolution has maps.

    It has the same parameters, names of outputs, outputs and gradients. If it ``trains``, products
    of maps and a number for each are computed by a linear layer, see ``_Filling``, and a graph
    without BatchNorm is returned as it is.
    """
    if trains and all(node["op"] != "BatchNorm" for node in to_json(symbol)["nodes"]):
        # Without the layers that suffer, padding costs more than it saves: 1.2 times in LeNet.
        return symbol
    return _Filling(symbol, batch_shape, trains).rewrite()


def _with_kernel(node: Node, shape: Shape) -> Node:
    """Return a pooling of a shape; if of whole maps, with a kernel, which only oneDNN asks for."""
    attributes = node.get("attrs", {})
    if attributes.get("global_pool") != "True" or "kernel" in attributes or len(shape) != 4:
        return node
    return {**node, "attrs": {**attributes, "kernel": "(1, 1)"}}


def _has_quarters(node: Node, shape: Shape, block: int) -> bool:
    """Whether this is a mean of maps by oneDNN, with fewer blocks than rows, that can be split."""
    attributes = node["attrs"]
    is_mean = attributes.get("global_pool") == "True" and attributes.get("pool_type") == "avg"
    if not is_mean or len(shape) != 4:
        return False
    _, channels, height, width = shape
    return max(height, width) > channels // block and height % 2 == 0 and width % 2 == 0


def _keeps_zeros(node: Node) -> bool:
    """Whether this computes zeros of zeros, for each channel by itself, without a parameter."""
    return is_bend(node) or node["op"] in ("Pooling", *SUMS)


class _Filling(Rewriter):
    """The graph with full blocks.

    Where squeeze-and-excitation multiplies maps by a number for each, MXNet computes the gradient
    of such a number, a sum over one map, in a loop that takes four times as long as all that is
    around it. So a linear layer of oneDNN, whose kernel is ones, spreads the number over the map:
    its backward pass is that sum.
    """

    def __init__(self, symbol: Symbol, batch_shape: Shape, trains: bool) -> None:
        super().__init__(symbol, batch_shape)
        self._trains = trains
        self._block = environment.channel_block()
        # By a node: the first inputs of the operators that read it.
        self._readers: dict[int, set[int]] = {}
        for node in self.given:
            for source, *_ in node["inputs"]:
                self._readers.setdefault(source, set()).add(node["inputs"][0][0])
        # For each padded output: the channels before the padding, and how many zeros follow them.
        # The outputs of ``_cuts`` are those without the padding.
        self._padded: dict[int, tuple[int, int]] = {}
        self._cuts: dict[int, Entry] = {}

    @override
    def make(self, index: int) -> int:
        node = {**self.given[index], "inputs": self.inputs(index)}
        if node["op"] == "null" and node["name"] != "data":
            return self.add_shaped(index)
        if node["op"] == "Convolution":
            return self._add_convolution(node, index)
        if any(entry[0] in self._padded for entry in node["inputs"]):
            return self._add_padded(node, index)
        return self._add_full(node, index)

    @override
    def head(self, entry: Entry) -> Entry:
        new = super().head(entry)
        if new[0] in self._padded:
            padded, new = self.nodes[new[0]], self._without_padding(new)
            self.nodes[new[0]]["name"], padded["name"] = padded["name"], f"{padded['name']}_filled"
        return new

    def _add_full(self, node: Node, index: int) -> int:
        """Append an operator, but a convolution, whose inputs have no padding."""
        if node["op"] == "Pooling":
            maps = self.input_shape(index)
            node = _with_kernel(node, maps)
            if _has_quarters(node, maps, self._block):
                return self._add_quarters(node, maps)
        # MXNet writes a product in the plain layout.
        has_blocks = all(self.nodes[one[0]]["op"] != "elemwise_mul" for one in node["inputs"])
        if node["op"] in SUMS and has_blocks:
            # MXNet gives a sum the layout of the first addend, and may write it over that one; the
            # input of a residual unit is still needed, and has the layout of the units before. The
            # output of a ReLU is needed by its backward pass.
            def order(one: Entry) -> tuple[bool, Entry]:
                return self.nodes[one[0]]["op"] != "Activation", one

            return self.add({**node, "inputs": sorted(node["inputs"], key=order, reverse=True)})
        if node["op"] == "Concat" and self._trains and has_maps(self.shape(index)):
            counts = [self.input_shape(index, one)[1] for one in range(len(node["inputs"]))]
            if any(count % self._block for count in counts):
                return self._joined_apart(node["name"], node["inputs"])[0]
        if node["op"] == "broadcast_mul" and self._trains:
            maps, factors = (self.input_shape(index, number) for number in range(2))
            # One number for each map, of all images, and maps of more than one pixel.
            if has_maps(maps) and factors == (*maps[:2], 1, 1):
                x, number = node["inputs"]
                return self._add_spread(node["name"], x, number, maps)
        return self.add(node)

    def _add_padded(self, node: Node, index: int) -> int:
        """Append an operator, but a convolution, of which an input has padding."""
        inputs = node["inputs"]
        extra = self._padding(inputs[0])
        if extra and _keeps_zeros(node) and all(self._padding(one) == extra for one in inputs):
            made = self._add_full(node, index)
        elif extra and self._is_norm(index):
            made = self._add_norm(node, extra)
        else:
            return self._add_full({**node, "inputs": [*map(self._without_padding, inputs)]}, index)
        self._padded[made] = self._padded[inputs[0][0]]
        return made

    def _is_norm(self, index: int) -> bool:
        """Return True for a BatchNorm of channels whose statistics no other maps have."""
        node = self.given[index]
        attributes = node.get("attrs", {})
        return (
            node["op"] == "BatchNorm"
            and attributes.get("fix_gamma", "True") == "False"
            and attributes.get("axis", "1") == "1"
            and all(len(self._readers[entry[0]]) == 1 for entry in node["inputs"][3:5])
        )

    def _add_norm(self, node: Node, extra: int) -> int:
        """Append a BatchNorm of maps with padding."""
        name, (maps, *parameters, mean, variance) = node["name"], node["inputs"]
        count = sum(self._padded[maps[0]])
        for statistic in (mean, variance):
            self.nodes[statistic[0]]["attrs"]["__shape__"] = str((count,))
        padded = [
            self._with_zeros(f"{name}_{part}", one, (extra,), axis=0)
            for part, one in zip(("gamma", "beta"), parameters)
        ]
        return self.add({**node, "inputs": [maps, *padded, mean, variance]})

    def _add_convolution(self, node: Node, index: int) -> int:
        """Append a convolution, of full blocks where that is worth it."""
        kernel = self.input_shape(index, 1)
        plain = Channels.of(node, kernel)
        full = plain.filled(self._block)
        if full != plain and full.is_close_to(plain) and has_maps(self.shape(index)):
            return self._add_filled(node, kernel, plain, full)
        return self.add({**node, "inputs": [*map(self._without_padding, node["inputs"])]})

    def _add_filled(self, node: Node, kernel: Shape, plain: Channels, full: Channels) -> int:
        """Append a convolution with other groups and channels."""
        name, attributes = node["name"], node["attrs"]
        x, weight, *bias = node["inputs"]
        extra = full.all_outputs - plain.all_outputs
        inputs = [
            self._with_zero_maps(name, x, full.all_inputs - plain.all_inputs),
            self._kernel(name, weight, kernel, plain, full),
        ]
        if bias:
            inputs.append(self._with_zeros(f"{name}_bias", bias[0], (extra,), axis=0))
        sizes = {"num_filter": str(full.all_outputs), "num_group": str(full.groups)}
        made = self.add({**node, "inputs": inputs, "attrs": {**attributes, **sizes}})
        if extra:
            self._padded[made] = plain.all_outputs, extra
        return made

    def _padding(self, entry: Entry) -> int:
        """How many channels of zeros are behind those of an output."""
        return self._padded.get(entry[0], (0, 0))[1]

    def _without_padding(self, entry: Entry) -> Entry:
        """Return the output that has the channels of the given graph alone."""
        index = entry[0]
        if index not in self._padded:
            return entry
        if index not in self._cuts:
            name, end = f"{self.nodes[index]['name']}_cut", self._padded[index][0]
            self._cuts[index] = self.operator("slice_axis", name, [entry], axis=1, begin=0, end=end)
        return self._cuts[index]

    def _add_spread(self, name: str, x: Entry, factors: Entry, maps: Shape) -> int:
        """Append the product of maps and a number for each, [N, C, 1, 1]."""
        pixels = maps[2] * maps[3]
        column = self.operator("Reshape", f"{name}_column", [factors], shape=(-1, 1))
        ones = self.operator("_ones", f"{name}_ones", [], shape=(pixels, 1), dtype="float32")
        sizes = {"num_hidden": pixels, "no_bias": True}
        rows = self.operator("FullyConnected", f"{name}_rows", [column, ones], **sizes)
        spread = self.operator("Reshape", f"{name}_spread", [rows], shape=(-1, *maps[1:]))
        return self.operator("elemwise_mul", name, [x, spread])[0]

    def _add_quarters(self, node: Node, shape: Shape) -> int:
        """Append a mean of maps of a shape as that of the means of their quarters.

        oneDNN derives the layout of the gradient of the maps from that of the mean, in which the
        order of the axes is undefined, since two have one element: where the maps are higher than
        the number of blocks, it takes an order that its fast kernels do not have
        (``pooling_pd.hpp``, ``memory_desc_init_by_blocking_desc``).
        """
        name, size = node["name"], (shape[2] // 2, shape[3] // 2)
        own = {"kernel": size, "stride": size, "pool_type": "avg"}
        quarters = self.operator("Pooling", f"{name}_quarters", node["inputs"], **own)
        return self.add({**node, "inputs": [quarters]})

    def _kernel(
        self, name: str, weight: Entry, kernel: Shape, plain: Channels, full: Channels
    ) -> Entry:
        """Append the kernel of a convolution with other groups and channels."""
        outputs, inputs, *window = kernel
        if plain.groups == 1:
            extra = full.inputs - inputs
            weight = self._with_zeros(f"{name}_in", weight, (outputs, extra, *window), axis=1)
            extra = full.outputs - outputs
            return self._with_zeros(f"{name}_out", weight, (extra, full.inputs, *window), axis=0)
        joined = full.inputs // inputs
        extra = (full.groups * joined - plain.groups) * plain.outputs
        weight = self._with_zeros(f"{name}_out", weight, (extra, inputs, *window), axis=0)
        if joined == 1:
            return weight
        padded = (full.all_outputs, inputs, *window)
        return joined_kernel(self, name, weight, padded, full[1:])

    def _with_zeros(self, name: str, array: Entry, shape: Shape, *, axis: int) -> Entry:
        """Append zeros of a shape to a parameter, along an axis."""
        if not shape[axis]:
            return array
        zeros = self.operator("_zeros", f"{name}_zeros", [], shape=shape, dtype="float32")
        return self._concatenated(f"{name}_padded", [array, zeros], axis)

    def _with_zero_maps(self, name: str, x: Entry, extra: int) -> Entry:
        """Return maps with ``extra`` channels of zeros behind their own."""
        if self._padding(x) == extra:
            return x
        x = self._without_padding(x)
        if not extra:
            return x
        name = f"{name}_maps"
        cut = self.operator("slice_axis", f"{name}_cut", [x], axis=1, begin=0, end=extra)
        zeros = self.operator("zeros_like", f"{name}_zeros", [cut])
        return self._joined_apart(f"{name}_padded", [x, zeros])

    def _joined_apart(self, name: str, maps: list[Entry]) -> Entry:
        """Append a concatenation of maps along their channels, with five dimensions.

        Then MXNet computes it by itself: its call of oneDNN ends the process, or fails, where the
        gradient would have to be cut within a block.
        """
        apart = [
            self.operator("expand_dims", f"{name}_apart{number}", [one], axis=1)
            for number, one in enumerate(maps)
        ]
        joined = self._concatenated(f"{name}_joined", apart, 2)
        return self.operator("squeeze", name, [joined], axis=1)

    def _concatenated(self, name: str, arrays: list[Entry], axis: int) -> Entry:
        return self.operator("Concat", name, arrays, num_args=len(arrays), dim=axis)
