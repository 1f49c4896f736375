"""Convolutions whose channels fill oneDNN's blocks, so that no layer falls to a reference kernel.

oneDNN keeps feature maps in blocks of as many channels as fit into a vector register: 8 with AVX2,
16 with AVX-512. Where the last block would not be full, it pads it, but MXNet refuses every
implementation whose arrays are larger than its own (``GetConvFwdImpl`` of ``mkldnn_convolution.cc``
and its counterparts), so that oneDNN goes on to kernels for smaller registers, with blocks of 8 or
4, and at last to a matrix product. Slower as they are, the real cost comes with the neighbors. A
BatchNorm has a fast backward pass only if maps and gradient have the same blocks, and a sum only if
its addends have (``jit_uni_batch_normalization.cpp``, ``simple_sum.cpp``); MXNet passes what comes,
and oneDNN computes these by its reference implementation, which takes a hundred times as long.

So a convolution gets channels and groups that fill the blocks:

- Groups of too few channels are joined, k to one, whose kernel is block-diagonal. That is k times
  the arithmetic, in registers that are k times as full.
- Channels that are no multiple of a block are padded with zeros, and the kernel as well; what
  belongs to the padding is cut off again. Groups are padded by whole groups. Few channels, which
  padding would more than double, are left as they are.

The parameters, their names and their gradients are those of the plain graph.
"""

from __future__ import annotations

from typing import Any

from backbones.graph.nodes import Entry, Node, Shape, first_shapes, from_json, moved, to_json
from backbones.graph.onednn.channels import Channels, is_common
from backbones.graph.onednn.diagonal import joined_kernel
from backbones.layers import Symbol


def rewrite(symbol: Symbol, batch_shape: Shape, block: int) -> Symbol:
    """Return the graph with blocks of channels that are full, wherever a convolution has maps.

    It has the same parameters, names of outputs, outputs and gradients. A graph without BatchNorm
    is returned as it is.

    Args:
        symbol: a graph with the input ``data``.
        batch_shape: of the input; the number of images does not matter.
        block: channels of a block, ``runtime.environment.channel_block``.
    """
    graph = to_json(symbol)
    if all(node["op"] != "BatchNorm" for node in graph["nodes"]):
        # Without the layers that suffer, padding costs more than it saves: 1.2 times in LeNet.
        return symbol
    shapes = first_shapes(symbol, batch_shape)
    builder = _Builder(block)
    indices: dict[int, int] = {}
    for index, node in enumerate(graph["nodes"]):
        inputs = [moved(entry, indices) for entry in node["inputs"]]
        if node["op"] == "null" and node["name"] != "data":
            # MXNet cannot infer the shape of a parameter from that of its product.
            known = {"__shape__": str(shapes[node["name"]])}
            indices[index] = builder.add({**node, "attrs": {**node.get("attrs", {}), **known}})
            continue
        new = {**node, "inputs": inputs}
        if node["op"] in _SUMS:
            new["inputs"] = builder.addends(node["name"], inputs, shapes[node["name"]])
        if node["op"] == "Pooling":
            maps = shapes[graph["nodes"][node["inputs"][0][0]]["name"]]
            if _has_quarters(node, maps, block):
                indices[index] = builder.add_quarters(new, maps)
                continue
        if node["op"] == "Convolution":
            kernel = shapes[graph["nodes"][node["inputs"][1][0]]["name"]]
            plain = Channels.of(node, kernel)
            full = plain.filled(block)
            has_maps = _has_maps(shapes[node["name"]])
            if full != plain and full.is_close_to(plain) and has_maps and is_common(node):
                indices[index] = builder.add_filled(new, kernel, plain, full)
                continue
        indices[index] = builder.add(new)
    heads = [moved(entry, indices) for entry in graph["heads"]]
    return from_json(builder.nodes, heads, graph["attrs"])


def _has_maps(shape: Shape) -> bool:
    """Whether this is an output of more than one pixel; else blocks are not worth an operator."""
    return len(shape) == 4 and shape[2] * shape[3] > 1


def _has_quarters(node: Node, shape: Shape, block: int) -> bool:
    """Whether this is a mean of maps by oneDNN, with fewer blocks than rows, that can be split."""
    attributes = node["attrs"]
    if attributes.get("global_pool") != "True" or "kernel" not in attributes:
        return False
    if attributes.get("pool_type") != "avg" or len(shape) != 4:
        return False
    _, channels, height, width = shape
    return max(height, width) > channels // block and height % 2 == 0 and width % 2 == 0


_SUMS = ("elemwise_add", "_Plus", "_plus", "_add")
# Operators that oneDNN computes in blocks, whatever the layout of their input.
_BLOCKED = ("Convolution", "Deconvolution")
# Operators whose output has the layout of their first input.
_KEEPING = ("BatchNorm", "Activation", "LeakyReLU", "Pooling", "Dropout", "_copy", *_SUMS)


class _Builder:
    """The nodes of the rewritten graph; operators are appended after their inputs."""

    def __init__(self, block: int) -> None:
        self.nodes: list[Node] = []
        self._block = block

    def add(self, node: Node) -> int:
        """Append a node; returns its index."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def add_filled(self, node: Node, kernel: Shape, plain: Channels, full: Channels) -> int:
        """Append a convolution with other groups and channels; the last node has its name."""
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
        filled = {"op": "Convolution", "inputs": inputs, "attrs": {**attributes, **sizes}}
        if not extra:
            return self.add({**filled, "name": name})
        index = self.add({**filled, "name": f"{name}_filled"})
        end = str(plain.all_outputs)
        return self.operator("slice_axis", name, [[index, 0, 0]], axis="1", begin="0", end=end)[0]

    def addends(self, name: str, inputs: list[Entry], shape: Shape) -> list[Entry]:
        """Return the addends of a sum of a shape: the later first, and all in blocks if one is.

        oneDNN has a fast sum only of equal layouts. MXNet gives the sum the layout of the first
        addend, and may write it over that one; the input of a residual unit is still needed, and
        has the layout of the units before. What MXNet computed by itself, in the plain layout, is
        multiplied by ones for each channel, a convolution whose output and gradient are in blocks.
        """
        addends = sorted(inputs, reverse=True)
        are_blocked = [self._is_blocked(entry) for entry in addends]
        if all(are_blocked) or not any(are_blocked) or not _has_maps(shape):
            return addends
        return [
            entry if is_blocked else self._times_ones(f"{name}_addend{number}", entry, shape[1])
            for number, (entry, is_blocked) in enumerate(zip(addends, are_blocked))
        ]

    def _times_ones(self, name: str, x: Entry, channels: int) -> Entry:
        count = str(channels)
        shape = str((channels, 1, 1, 1))
        ones = self.operator("_ones", f"{name}_ones", [], shape=shape, dtype="float32")
        sizes = {"kernel": "(1, 1)", "num_filter": count, "num_group": count, "no_bias": "True"}
        return self.operator("Convolution", name, [x, ones], **sizes)

    def add_quarters(self, node: Node, shape: Shape) -> int:
        """Append a mean of maps of a shape as that of the means of their quarters.

        oneDNN derives the layout of the gradient of the maps from that of the mean, in which the
        order of the axes is undefined, since two have one element: where the maps are higher than
        the number of blocks, it takes an order that its fast kernels do not have
        (``pooling_pd.hpp``, ``memory_desc_init_by_blocking_desc``).
        """
        name, size = node["name"], str((shape[2] // 2, shape[3] // 2))
        own = {"kernel": size, "stride": size, "pool_type": "avg"}
        quarters = self.operator("Pooling", f"{name}_quarters", node["inputs"], **own)
        return self.add({**node, "inputs": [quarters]})

    def _is_blocked(self, entry: Entry) -> bool:
        """Whether an output is in blocks; operators of MXNet's own write the plain layout."""
        node = self.nodes[entry[0]]
        if node["op"] in _KEEPING:
            return self._is_blocked(node["inputs"][0])
        return node["op"] in _BLOCKED

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
        zeros = self.operator("_zeros", f"{name}_zeros", [], shape=str(shape), dtype="float32")
        return self._concatenated(f"{name}_padded", [array, zeros], axis)

    def _with_zero_maps(self, name: str, x: Entry, extra: int) -> Entry:
        """Append maps of zeros, of which there are fewer than a block."""
        if not extra:
            return x
        name = f"{name}_maps"
        # With five dimensions MXNet computes the concatenation by itself: its call of oneDNN fails
        # where the gradient would have to be cut within a block.
        x = self.operator("expand_dims", f"{name}_apart", [x], axis="1")
        cut = self.operator("slice_axis", f"{name}_cut", [x], axis="2", begin="0", end=str(extra))
        zeros = self.operator("zeros_like", f"{name}_zeros", [cut])
        padded = self._concatenated(f"{name}_padded", [x, zeros], 2)
        return self.operator("squeeze", f"{name}_together", [padded], axis="1")

    def _concatenated(self, name: str, arrays: list[Entry], axis: int) -> Entry:
        count = {"num_args": str(len(arrays)), "dim": str(axis)}
        return self.operator("Concat", name, arrays, **count)

    def operator(self, op: str, name: str, inputs: list[Entry], **attributes: Any) -> Entry:
        """Append an operator; returns its output."""
        return [self.add({"op": op, "name": name, "attrs": attributes, "inputs": inputs}), 0, 0]
