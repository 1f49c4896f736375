"""The graph that computes in bfloat16 on a CPU, from float32 parameters.

Feature maps, kernels and their gradients are bfloat16 between casts; parameters, the statistics and
factors of BatchNorm, the gradients that the optimizer gets, and the last layers are float32. oneDNN
adds up products in float32 in either case.

oneDNN's convolutions in bfloat16 agree on the layout of maps: by matrix tiles (AMX) the channels
come last, by vector registers (AVX512_BF16) they are in blocks of 16, or last in inference. Other
convolutions have other layouts, and where the two meet a BatchNorm gets maps in one layout and
their gradient in the other, which only the reference implementation takes: a second for one layer
of 64 channels and 112 x 112 pixels. So

- groups of too few channels are joined under a block-diagonal kernel, to groups of 32 for tiles
  and of 16 for registers. Depthwise convolutions, the factors of PReLU among them, are joined for
  tiles only, which multiply the zeros as fast as vectors multiply the rest.
- a convolution whose channels are no multiple of that is left in float32. A cast has the plain
  layout on its float32 side, which fits to all others.
- an addend that comes from a cast is multiplied by one for each channel, in such a convolution,
  where the other comes from another convolution in bfloat16. So is what a BatchNorm takes of a
  convolution in the plain layout, the first one of a network for registers: of maps in the plain
  layout, statistics take ten times as long as the product.

The parameters and their names are those of the plain graph.
"""

from __future__ import annotations

from typing import NamedTuple

from backbones.graph.nodes import (
    Entry,
    NewNodes,
    Node,
    Shape,
    first_shapes,
    from_json,
    moved,
    to_json,
)
from backbones.graph.onednn import blocked
from backbones.graph.onednn.channels import SUMS, Channels, has_maps, is_common
from backbones.graph.onednn.diagonal import joined_kernel
from backbones.layers import Symbol
from runtime.environment import Bfloat16Unit

_NARROW, _WIDE = "bfloat16", "float32"
_FLOAT32 = "0"
"""Its number among MXNet's types (mshadow/base.h)."""
# oneDNN's functions of one number, those of PReLU's factors excepted.
_FUNCTIONS = ("Activation", "LeakyReLU", "Pooling")


class _Taken(NamedTuple):
    """The convolutions that a unit computes.

    Attributes:
        channels: of which inputs and outputs are multiples.
        depthwise: whether groups of one channel are as fast as they are.
        pixels: whether a convolution of an image, which has fewer channels, writes the layout of
            all others; else it is a matrix product of the plain layout.
    """

    channels: int
    depthwise: bool
    pixels: bool

    def joined(self, plain: Channels) -> Channels:
        """Return the channels with groups that the unit takes."""
        return plain if self._keeps(plain) else plain.joined(self.channels)

    def lays_out(self, channels: Channels) -> bool:
        """Whether a convolution writes the layout that those of the unit agree on."""
        return self.pixels or not channels.is_of_pixels

    def takes(self, channels: Channels) -> bool:
        """Whether the unit computes a convolution, forward and backward."""
        if self._keeps(channels):
            return True
        if channels.outputs % self.channels:
            return False
        return channels.inputs % self.channels == 0 or channels.is_of_pixels

    def _keeps(self, channels: Channels) -> bool:
        is_depthwise = channels.groups > 1 and channels.inputs == channels.outputs == 1
        return self.depthwise and is_depthwise and channels.groups % self.channels == 0


# A row of a tile has 64 bytes; a register of sums has 16 numbers.
_TAKEN = {
    Bfloat16Unit.TILES: _Taken(channels=32, depthwise=False, pixels=True),
    Bfloat16Unit.VECTORS: _Taken(channels=16, depthwise=True, pixels=False),
}


def rewrite(symbol: Symbol, batch_shape: Shape, block: int, unit: Bfloat16Unit) -> Symbol:
    """Return the graph with bfloat16 maps wherever a unit can compute a convolution.

    It has the same parameters, all float32, and names of outputs; outputs are float32.

    Args:
        symbol: a float32 graph with the input ``data``.
        batch_shape: of the input; the number of images does not matter.
        block: channels of a block of what stays float32, ``runtime.environment.channel_block``.
        unit: what multiplies, ``runtime.environment.bfloat16_unit``.
    """
    filled = blocked.rewrite(symbol, batch_shape, block)
    taken = _TAKEN[unit]
    joined = _join(filled, batch_shape, taken)
    graph, shapes = to_json(joined), first_shapes(joined, batch_shape)
    builder = _Builder(shapes, taken)
    for index, node in enumerate(graph["nodes"]):
        builder.add_typed(index, node)
    heads = [builder.cast(moved(entry, builder.indices), _WIDE) for entry in graph["heads"]]
    return from_json(builder.nodes, heads, graph["attrs"])


def _join(symbol: Symbol, batch_shape: Shape, taken: _Taken) -> Symbol:
    """Return the graph with groups of channels that a unit takes."""
    graph, shapes = to_json(symbol), first_shapes(symbol, batch_shape)
    builder = _Joining()
    indices: dict[int, int] = {}
    for index, node in enumerate(graph["nodes"]):
        new = {**node, "inputs": [moved(entry, indices) for entry in node["inputs"]]}
        if node["op"] == "Convolution" and has_maps(shapes[node["name"]]) and is_common(node):
            kernel = _kernel_shape(graph["nodes"], node, shapes)
            plain = Channels.of(node, kernel)
            full = taken.joined(plain)
            if plain.groups > 1 and full != plain and full.all_inputs == plain.all_inputs:
                indices[index] = builder.add_joined(new, kernel, full)
                continue
        indices[index] = builder.add(new)
    heads = [moved(entry, indices) for entry in graph["heads"]]
    return from_json(builder.nodes, heads, graph["attrs"])


def _kernel_shape(nodes: list[Node], node: Node, shapes: dict[str, Shape]) -> Shape:
    return shapes[nodes[node["inputs"][1][0]]["name"]]


class _Joining(NewNodes):
    """The nodes of a graph with wider groups."""

    def add_joined(self, node: Node, kernel: Shape, full: Channels) -> int:
        """Append a convolution with other groups than those of its kernel of a shape."""
        x, weight, *bias = node["inputs"]
        wide = joined_kernel(self, node["name"], weight, kernel, full[1:])
        attributes = {**node["attrs"], "num_group": str(full.groups)}
        return self.add({**node, "inputs": [x, wide, *bias], "attrs": attributes})


class _Builder(NewNodes):
    """The nodes of the rewritten graph, each with the type in which it computes.

    Attributes:
        indices: the index in the new graph of each node of the given one.
    """

    def __init__(self, shapes: dict[str, Shape], taken: _Taken) -> None:
        super().__init__()
        self._taken = taken
        self.indices: dict[int, int] = {}
        self._shapes = shapes
        self._given: list[Node] = []
        # The outputs that are bfloat16, and of these such as have the layout of convolutions.
        self._narrow: set[int] = set()
        self._laid_out: set[int] = set()
        # One cast for all consumers.
        self._casts: dict[tuple[int, int, str], Entry] = {}

    def add_typed(self, index: int, node: Node) -> None:
        """Append what stands for the next node of the given graph."""
        self._given.append(node)
        if node["op"] == "null":
            # MXNet cannot infer the type, or the shape, of what is cast.
            known = {"__dtype__": _FLOAT32, "__shape__": str(self._shapes[node["name"]])}
            is_data = node["name"] == "data"
            typed = node if is_data else {**node, "attrs": {**node.get("attrs", {}), **known}}
            self.indices[index] = self.add(typed)
            return
        inputs = [moved(entry, self.indices) for entry in node["inputs"]]
        is_narrow = self._is_narrow(node, inputs)
        if node["op"] == "BatchNorm":
            maps = self._laid_out_maps(node, inputs[0]) if is_narrow else inputs[0]
            inputs = [maps, *(self.cast(entry, _WIDE) for entry in inputs[1:])]
        else:
            inputs = [self.cast(entry, _NARROW if is_narrow else _WIDE) for entry in inputs]
        if is_narrow and node["op"] in SUMS:
            inputs = self._in_one_layout(node["name"], inputs)
        made = self.indices[index] = self.add({**node, "inputs": inputs})
        if is_narrow:
            self._narrow.add(made)
            if self._is_laid_out(node, inputs):
                self._laid_out.add(made)

    def cast(self, entry: Entry, to: str) -> Entry:
        """Append a cast, unless the output has the type."""
        if (entry[0] in self._narrow) == (to == _NARROW):
            return entry
        key = (entry[0], entry[1], to)
        if key not in self._casts:
            name = f"{self.nodes[entry[0]]['name']}_{to}"
            self._casts[key] = self.operator("amp_cast", name, [entry], dtype=to)
            if to == _NARROW:
                self._narrow.add(self._casts[key][0])
        return self._casts[key]

    def _is_narrow(self, node: Node, inputs: list[Entry]) -> bool:
        """Whether a node of the given graph computes in bfloat16, given inputs of the new one."""
        if not has_maps(self._shapes[node["name"]]):
            return False
        are_narrow = [entry[0] in self._narrow for entry in inputs]
        if node["op"] == "Convolution":
            return is_common(node) and self._taken.takes(self._channels(node))
        if node["op"] in SUMS:
            return any(are_narrow)
        if node["op"] == "BatchNorm":
            return are_narrow[0] and node["attrs"].get("axis", "1") == "1"
        is_prelu = node.get("attrs", {}).get("act_type") == "prelu"
        return node["op"] in _FUNCTIONS and not is_prelu and are_narrow[0]

    def _is_laid_out(self, node: Node, inputs: list[Entry]) -> bool:
        """Whether an output in bfloat16 has the layout of the unit's convolutions."""
        if node["op"] != "Convolution":
            return inputs[0][0] in self._laid_out
        return self._taken.lays_out(self._channels(node))

    def _channels(self, node: Node) -> Channels:
        """Those of a convolution of the given graph."""
        return Channels.of(node, _kernel_shape(self._given, node, self._shapes))

    def _laid_out_maps(self, node: Node, maps: Entry) -> Entry:
        """Return the maps that a BatchNorm in bfloat16 takes, in the layout of convolutions."""
        if maps[0] in self._laid_out:
            return maps
        return self._times_one(f"{node['name']}_laid_out", maps, self._shapes[node["name"]][1])

    def _in_one_layout(self, name: str, inputs: list[Entry]) -> list[Entry]:
        """Return the addends of a sum, in one layout."""
        channels = self._shapes[name][1]
        laid_out = self._laid_out
        if channels % self._taken.channels or not any(entry[0] in laid_out for entry in inputs):
            return inputs
        return [
            entry if entry[0] in laid_out else self._times_one(f"{name}_{i}", entry, channels)
            for i, entry in enumerate(inputs)
        ]

    def _times_one(self, name: str, x: Entry, channels: int) -> Entry:
        """Append a convolution in bfloat16 that changes nothing but the layout."""
        ones = self.operator(
            "_ones", f"{name}_ones", [], shape=str((channels, 1, 1, 1)), dtype=_WIDE
        )
        plain = Channels(channels, 1, 1)
        full = self._taken.joined(plain)
        kernel = ones
        if full != plain:
            kernel = joined_kernel(self, name, ones, (channels, 1, 1, 1), full[1:])
        sizes = {"kernel": "(1, 1)", "num_filter": str(channels), "num_group": str(full.groups)}
        entry = self.operator(
            "Convolution", name, [x, self.cast(kernel, _NARROW)], **sizes, no_bias="True"
        )
        self._narrow.add(entry[0])
        self._laid_out.add(entry[0])
        return entry
