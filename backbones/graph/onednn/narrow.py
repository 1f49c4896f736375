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

from typing_extensions import override

from backbones.graph.nodes import Entry, Node, Rewriter, Shape
from backbones.graph.onednn import blocked
from backbones.graph.onednn.channels import SUMS, Channels, has_maps, joined_kernel
from backbones.layers import Symbol
from runtime import environment
from runtime.environment import Bfloat16Unit

_NARROW, _WIDE = "bfloat16", "float32"
_FLOAT32 = "0"
"""Its number among MXNet's types (mshadow/base.h)."""
# oneDNN's functions of one number, those of PReLU's factors excepted.
_FUNCTIONS = ("Activation", "LeakyReLU", "Pooling")


def rewrite(symbol: Symbol, batch_shape: Shape) -> Symbol:
    """Return the graph with bfloat16 maps wherever this processor can compute a convolution.

    It has the same parameters, all float32, and names of outputs; outputs are float32.
    """
    unit = environment.bfloat16_unit()
    assert unit, "usable_dtype() has been asked"
    return _Narrowing(blocked.rewrite(symbol, batch_shape), batch_shape, unit).rewrite()


class _Narrowing(Rewriter):
    """The graph with the type in which each node computes, and groups that the unit takes."""

    def __init__(self, symbol: Symbol, batch_shape: Shape, unit: Bfloat16Unit) -> None:
        super().__init__(symbol, batch_shape)
        # By registers a convolution of an image is a matrix product of the plain layout.
        self._by_tiles = unit == "AMX"
        # Inputs and outputs are multiples of this: a row of a tile has 64 bytes; a register of sums
        # has 16 numbers.
        self._multiple = 32 if self._by_tiles else 16
        # The outputs that are bfloat16, and of these such as have the layout of convolutions.
        self._narrow: set[int] = set()
        self._laid_out: set[int] = set()
        # One cast for all consumers.
        self._casts: dict[tuple[int, int, str], Entry] = {}

    @override
    def make(self, index: int) -> int:
        node, inputs = self.given[index], self.inputs(index)
        if node["op"] == "null":
            if node["name"] == "data":
                return super().make(index)
            made = self.add_shaped(index)
            # MXNet cannot infer the type of what is cast.
            self.nodes[made]["attrs"]["__dtype__"] = _FLOAT32
            return made
        is_narrow = self._is_narrow(index, inputs)
        if is_narrow and node["op"] == "Convolution":
            node, inputs = self._joined(index, inputs)
        if node["op"] == "BatchNorm":
            maps, name = inputs[0], f"{node['name']}_laid_out"
            if is_narrow and maps[0] not in self._laid_out:
                maps = self._times_one(name, maps, self.shape(index)[1])
            inputs = [maps, *(self._cast(entry, _WIDE) for entry in inputs[1:])]
        else:
            inputs = [self._cast(entry, _NARROW if is_narrow else _WIDE) for entry in inputs]
        if is_narrow and node["op"] in SUMS:
            inputs = self._in_one_layout(index, inputs)
        made = self.add({**node, "inputs": inputs})
        if is_narrow:
            self._narrow.add(made)
            # Others have the layout of what they read.
            is_laid_out = inputs[0][0] in self._laid_out
            if node["op"] == "Convolution":
                is_laid_out = self._by_tiles or not self._channels(index).is_of_pixels
            if is_laid_out:
                self._laid_out.add(made)
        return made

    @override
    def head(self, entry: Entry) -> Entry:
        return self._cast(super().head(entry), _WIDE)

    def _channels(self, index: int) -> Channels:
        """Return groups and channels of a given convolution, as the unit takes them if it can."""
        plain = Channels.of(self.given[index], self.input_shape(index, 1))
        full = plain if plain.groups == 1 else self._full(plain)
        return full if full.all_inputs == plain.all_inputs else plain

    def _full(self, plain: Channels) -> Channels:
        """Return groups that the unit takes."""
        return plain if self._is_depthwise(plain) else plain.joined(self._multiple)

    def _is_depthwise(self, channels: Channels) -> bool:
        """Return True for groups of one channel that are as fast as they are."""
        is_single = channels.groups > 1 and channels.inputs == channels.outputs == 1
        return is_single and not self._by_tiles and channels.groups % self._multiple == 0

    def _takes(self, channels: Channels) -> bool:
        """Return True if the unit computes a convolution, forward and backward."""
        has_inputs = channels.inputs % self._multiple == 0 or channels.is_of_pixels
        is_full = has_inputs and channels.outputs % self._multiple == 0
        return is_full or self._is_depthwise(channels)

    def _joined(self, index: int, inputs: list[Entry]) -> tuple[Node, list[Entry]]:
        """Return a given convolution with these groups, and its inputs."""
        node, kernel, full = self.given[index], self.input_shape(index, 1), self._channels(index)
        if full.inputs == kernel[1]:
            return node, inputs
        x, weight, *bias = inputs
        wide = joined_kernel(self, node["name"], weight, kernel, full[1:])
        return {**node, "attrs": {**node["attrs"], "num_group": str(full.groups)}}, [x, wide, *bias]

    def _cast(self, entry: Entry, to: str) -> Entry:
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

    def _is_narrow(self, index: int, inputs: list[Entry]) -> bool:
        """Return True if a node, with its inputs in the new graph, computes in bfloat16."""
        node = self.given[index]
        if not has_maps(self.shape(index)):
            return False
        are_narrow = [entry[0] in self._narrow for entry in inputs]
        if node["op"] == "Convolution":
            return self._takes(self._channels(index))
        if node["op"] in SUMS:
            return any(are_narrow)
        if node["op"] == "BatchNorm":
            return are_narrow[0] and node["attrs"].get("axis", "1") == "1"
        is_prelu = node.get("attrs", {}).get("act_type") == "prelu"
        return node["op"] in _FUNCTIONS and not is_prelu and are_narrow[0]

    def _in_one_layout(self, index: int, inputs: list[Entry]) -> list[Entry]:
        """Return the addends of a sum, in one layout."""
        name, channels = self.given[index]["name"], self.shape(index)[1]
        laid_out = self._laid_out
        if channels % self._multiple or not any(entry[0] in laid_out for entry in inputs):
            return inputs
        return [
            entry if entry[0] in laid_out else self._times_one(f"{name}_{i}", entry, channels)
            for i, entry in enumerate(inputs)
        ]

    def _times_one(self, name: str, x: Entry, channels: int) -> Entry:
        """Append a convolution in bfloat16 that changes nothing but the layout."""
        shape, plain = (channels, 1, 1, 1), Channels(channels, 1, 1)
        kernel = self.operator("_ones", f"{name}_ones", [], shape=shape, dtype=_WIDE)
        full = self._full(plain)
        if full != plain:
            kernel = joined_kernel(self, name, kernel, shape, full[1:])
        sizes = {"num_filter": channels, "num_group": full.groups, "no_bias": True}
        inputs = [x, self._cast(kernel, _NARROW)]
        entry = self.operator("Convolution", name, inputs, kernel=(1, 1), **sizes)
        self._narrow.add(entry[0])
        self._laid_out.add(entry[0])
        return entry
