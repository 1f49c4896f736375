"""The graph that runs on a CPU: the same results from the same parameters, in less time.

MXNet passes convolutions, BatchNorm, ReLU and sums to oneDNN, but computes PReLU in a loop of its
own, whose backward pass takes longer than that of a convolution. So PReLU is composed of what
oneDNN has, where a factor per channel is a depthwise convolution of one pixel:

    PReLU(x) = slope * x + (1 - slope) * relu(x)

A BatchNorm whose only consumer is a PReLU applies one of the two factors: with z = t x from the
BatchNorm, and bent(z) = z where z is positive, -STEEPNESS z elsewhere,

    PReLU(x) = z + (1 / t - 1) * bent(z)    with t = (slope + STEEPNESS) / (1 + STEEPNESS)

holds as long as t is positive: slope > -STEEPNESS. Trained slopes are between -2 and 3 or so.

Where the only consumer of that PReLU is a convolution that is depthwise or of one pixel, as in a
MobileFaceNet, two BatchNorms normalize the same maps and apply both factors:

    sign PReLU(x) = (sign slope) x + relu((sign (1 - slope)) x)    with sign -1 for slopes above 1

The kernel is multiplied by the signs, 1 or -1. One map less has to wait for the backward pass: at
batch 32 a MobileFaceNet takes 1.3 instead of 1.6 GB.

At last convolutions get channels that fill oneDNN's blocks (``backbones.graph.onednn.blocked``,
with bfloat16 ``narrow``).
Both created graphs and graphs from checkpoints are rewritten. Files never contain rewritten graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from backbones.graph.nodes import Entry, Node, Rewriter, Shape, moved, only_consumers
from backbones.graph.onednn import blocked, narrow
from backbones.layers import Symbol

STEEPNESS = 31.0
"""Slopes are above -STEEPNESS. 1 + STEEPNESS is a power of two, so that divisions are exact."""

# Added to factors, of which it changes only 0.
_TINY = 1e-30


def rewrite(
    symbol: Symbol,
    image_shape: Shape,
    weights: Mapping[str, Any] = MappingProxyType({}),
    dtype: str = "float32",
) -> Symbol:
    """Return the graph with oneDNN's operators for PReLU on maps, and full blocks of channels.

    It has the same parameters, names of outputs, outputs and gradients.

    Args:
        symbol: a graph with the input ``data``.
        image_shape: channels, height and width of the images.
        weights: NDArrays of the initial parameters, as far as they are known. A PReLU with a slope
            of -STEEPNESS or less does not use the BatchNorm before it.
        dtype: float32, or bfloat16 for a CPU that multiplies it: of feature maps and products.
    """
    batch_shape = (1, *image_shape)
    composed = _Composing(symbol, batch_shape, weights).rewrite()
    return (narrow if dtype == "bfloat16" else blocked).rewrite(composed, batch_shape)


class _Composing(Rewriter):
    """The graph with PReLUs that are composed."""

    def __init__(self, symbol: Symbol, batch_shape: Shape, weights: Mapping[str, Any]) -> None:
        super().__init__(symbol, batch_shape)
        consumers = only_consumers(self._graph)
        # The PReLU of each BatchNorm that applies a factor of it, or both of them.
        self._scaling: dict[int, int] = {}
        self._doubled: dict[int, int] = {}
        # The shape of the signs that a convolution applies, by its PReLU.
        self._sign_shapes: dict[int, Shape] = {}
        for norm, prelu in consumers.items():
            if not self._can_scale(norm, prelu):
                continue
            shape = self._shape_of_signs(consumers.get(prelu, -1))
            if shape:
                self._doubled[norm], self._sign_shapes[prelu] = prelu, shape
            elif self._is_flat(prelu, weights):
                self._scaling[norm] = prelu
        # t of every BatchNorm that scales, by its index here.
        self._factors_of_norms: dict[int, Entry] = {}
        # By a BatchNorm that applies the slope: the ReLU to be added, and the signs [C].
        self._bent: dict[int, tuple[Entry, Entry]] = {}
        # By such a sum: its signs in the shape of the next kernel.
        self._signs: dict[int, Entry] = {}

    @override
    def rewrite(self) -> Symbol:
        # Variables before operators: a BatchNorm may need the slope of a later PReLU.
        for index, node in enumerate(self.given):
            if node["op"] == "null":
                is_data = node["name"] == "data"
                self.indices[index] = self.add(node) if is_data else self.add_shaped(index)
        return super().rewrite()

    @override
    def make(self, index: int) -> int:
        node, inputs = self.given[index], self.inputs(index)
        name, read = node["name"], inputs[0][0] if inputs else -1
        if index in self._scaling:
            return self._add_scaling_norm(node, inputs, self._slope(self._scaling[index]))
        if read in self._factors_of_norms:
            return self._add_prelu_of_scaled(name, inputs[0], self.shape(index)[1])
        if index in self._doubled:
            return self._add_norms(node, inputs, self._slope(self._doubled[index]))
        if read in self._bent:
            bent, sign = self._bent[read]
            added = self.operator("elemwise_add", name, [inputs[0], bent])[0]
            shape = self._sign_shapes[index]
            self._signs[added] = self.operator("Reshape", f"{name}_signs", [sign], shape=shape)
            return added
        if read in self._signs:
            x, kernel, *bias = inputs
            signed = self.operator("broadcast_mul", f"{name}_kernel", [kernel, self._signs[read]])
            return self.add({**node, "inputs": [x, signed, *bias]})
        if self.is_prelu_on_maps(index):
            return self._add_prelu(name, inputs, self.shape(index)[1])
        return super().make(index)

    def _slope(self, prelu: int) -> Entry:
        return moved(self.given[prelu]["inputs"][1], self.indices)

    def _can_scale(self, norm: int, prelu: int) -> bool:
        """Return True for a BatchNorm that can apply a factor of its only consumer."""
        node, channels = self.given[norm], self.shape(norm)[1:2]
        attributes = node.get("attrs", {})
        if (
            node["op"] != "BatchNorm"
            or attributes.get("fix_gamma") != "False"
            or attributes.get("axis", "1") != "1"
            or not self.is_prelu_on_maps(prelu)
        ):
            return False
        # A factor that is computed may come too late for the BatchNorm.
        factors = [*node["inputs"][1:3], self.given[prelu]["inputs"][1]]
        return all(self.given[i]["op"] == "null" and self.shape(i) == channels for i, *_ in factors)

    def _is_flat(self, prelu: int, weights: Mapping[str, Any]) -> bool:
        """Return False for slopes that are steep or not numbers: these are used as they are."""
        slope = weights.get(self.given[self.given[prelu]["inputs"][1][0]]["name"])
        return slope is None or float(slope.min().asscalar()) > -STEEPNESS

    def _shape_of_signs(self, layer: int) -> Shape:
        """Return the shape of one number for each channel that a convolution's kernel reads.

        Empty for other layers, and for kernels of several pixels, of which such a product would
        take longer than passes over the maps.
        """
        if layer < 0 or self.given[layer]["op"] != "Convolution":
            return ()
        # A kernel is [outputs, inputs of the group, height, width].
        outputs, inputs, *window = self.input_shape(layer, 1)
        channels = self.input_shape(layer)[1]
        if inputs == 1 and outputs == channels:
            return -1, 1, 1, 1
        return (1, -1, 1, 1) if inputs == channels and window == [1, 1] else ()

    def _add_scaling_norm(self, node: Node, inputs: list[Entry], slope: Entry) -> int:
        """Append a BatchNorm of t x, given x, gamma, beta, the rest, and the slope, all [C]."""
        name = node["name"]
        x, gamma, beta, *statistics = inputs
        raised = self.operator("_plus_scalar", f"{name}_raised", [slope], scalar=STEEPNESS)
        t = self.operator("_div_scalar", f"{name}_factor", [raised], scalar=1 + STEEPNESS)
        scaled = self._scaled(name, [gamma, beta], t)
        index = self.add({**node, "inputs": [x, *scaled, *statistics]})
        self._factors_of_norms[index] = t
        return index

    def _add_prelu_of_scaled(self, name: str, z: Entry, channels: int) -> int:
        """Append a PReLU of x, given t x of ``_add_scaling_norm``; the last node has its name."""
        t = self._factors_of_norms[z[0]]
        inverse = self.operator("_rdiv_scalar", f"{name}_inverse", [t], scalar="1.0")
        bend = self.operator("_minus_scalar", f"{name}_factor", [inverse], scalar="1.0")
        shape = (channels, 1, 1, 1)
        kernel = self.operator("Reshape", f"{name}_bent_kernel", [bend], shape=shape)
        bent = self.operator("LeakyReLU", f"{name}_bend", [z], act_type="leaky", slope=-STEEPNESS)
        scaled = self.scale(f"{name}_bent", bent, kernel, channels)
        # MXNet writes the sum over an input that is not needed any more, but oneDNN only over the
        # first; in the other order it would be copied.
        return self.operator("elemwise_add", name, [scaled, z])[0]

    def _add_prelu(self, name: str, inputs: list[Entry], channels: int) -> int:
        """Append a PReLU of x and slope [channels]; the last of its nodes has its name."""
        x, slope = inputs
        shape = (channels, 1, 1, 1)
        factor = self.operator("Reshape", f"{name}_slope", [slope], shape=shape)
        bend = self.operator("_rminus_scalar", f"{name}_bend", [factor], scalar="1.0")
        positive = self.operator("Activation", f"{name}_positive", [x], act_type="relu")
        linear = self.scale(f"{name}_linear", x, factor, channels)
        bent = self.scale(f"{name}_bent", positive, bend, channels)
        return self.operator("elemwise_add", name, [linear, bent])[0]

    def _add_norms(self, node: Node, inputs: list[Entry], slope: Entry) -> int:
        """Append BatchNorms with both factors, given x, gamma, beta, the rest, and the slope [C].

        The last one, which has the slope, has the name of the given one.
        """
        name = node["name"]
        x, gamma, beta, *statistics = inputs
        constant = self.operator("BlockGrad", f"{name}_constant", [slope])
        is_over_one = self.operator("_greater_scalar", f"{name}_over_one", [constant], scalar=1)
        twice = self.operator("_mul_scalar", f"{name}_twice", [is_over_one], scalar=2)
        sign = self.operator("_rminus_scalar", f"{name}_sign", [twice], scalar=1)
        linear = self.operator("elemwise_mul", f"{name}_linear", [slope, sign])
        bend = self.operator("elemwise_sub", f"{name}_bend", [sign, linear])
        # With a factor of 0, the ReLU would not know the sign of x, and the slope not its gradient.
        bend = self.operator("_plus_scalar", f"{name}_no_zero", [bend], scalar=_TINY)
        # Only one of them updates the running statistics.
        attributes = {**node["attrs"], "momentum": "1"}
        own = self._scaled(f"{name}_bent", [gamma, beta], bend)
        read = [x, *own, *statistics]
        bent = self.add({**node, "name": f"{name}_bent", "attrs": attributes, "inputs": read})
        positive = self.operator("Activation", f"{name}_positive", [[bent, 0, 0]], act_type="relu")
        own = self._scaled(name, [gamma, beta], linear)
        index = self.add({**node, "inputs": [x, *own, *statistics]})
        self._bent[index] = positive, sign
        return index

    def _scaled(self, name: str, parameters: list[Entry], factor: Entry) -> list[Entry]:
        """Append the products of gamma and beta with a factor, all [C]."""
        return [
            self.operator("elemwise_mul", f"{name}_scaled_{part}", [parameter, factor])
            for part, parameter in zip(("gamma", "beta"), parameters)
        ]
