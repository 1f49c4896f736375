"""The graph that runs on a CPU: the same results from the same parameters, in less time.

MXNet passes convolutions, BatchNorm, ReLU and sums to oneDNN, but computes PReLU in a loop of its
own, whose backward pass takes longer than that of a convolution. So PReLU is composed of what
oneDNN has, where a factor per channel is a depthwise convolution of one pixel:

    PReLU(x) = slope * x + (1 - slope) * relu(x)

A BatchNorm whose only consumer is a PReLU applies one of the two factors: with z = t x from the
BatchNorm, and bent(z) = z where z is positive, -STEEPNESS z elsewhere,

    PReLU(x) = z + (1 / t - 1) * bent(z)    with t = (slope + STEEPNESS) / (1 + STEEPNESS)

holds as long as t is positive: slope > -STEEPNESS. Trained slopes are between -1 and 1 or so.

Where the only consumer of a PReLU is a convolution that is depthwise, or of one pixel and to no
more channels, as in a MobileFaceNet, the factors go into its kernel K, which is applied twice:

    K * PReLU(x) = (slope K) * x + ((1 - slope) K) * relu(x)

The backward pass needs PReLU(x) in the other forms, but not in this one: at batch 32 a
MobileFaceNet takes 1.4 instead of 1.7 GB.

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
        dtype: float32, or bfloat16 for a CPU that multiplies it: of feature maps and products. No
            convolution applies factors in bfloat16, where it would round them.
    """
    batch_shape = (1, *image_shape)
    composed = _Composing(symbol, batch_shape, weights, absorbs=dtype == "float32").rewrite()
    return (narrow if dtype == "bfloat16" else blocked).rewrite(composed, batch_shape)


def _can_absorb(node: Node, channels: int) -> bool:
    """Return True for a convolution of ``channels`` that is cheap enough to be computed twice."""
    if node["op"] != "Convolution" or node["attrs"].get("no_bias") != "True":
        return False
    outputs, groups = (int(node["attrs"].get(key, "1")) for key in ("num_filter", "num_group"))
    if groups == channels:
        return outputs == channels
    return groups == 1 and node["attrs"]["kernel"] == "(1, 1)" and outputs <= channels


class _Composing(Rewriter):
    """The graph with PReLUs that are composed."""

    def __init__(
        self, symbol: Symbol, batch_shape: Shape, weights: Mapping[str, Any], *, absorbs: bool
    ) -> None:
        super().__init__(symbol, batch_shape)
        consumers = only_consumers(self._graph)
        # PReLUs whose factors the convolution after them applies.
        self._absorbed = {
            prelu
            for prelu, layer in consumers.items()
            if absorbs
            and self.is_prelu_on_maps(prelu)
            and _can_absorb(self.given[layer], self.input_shape(prelu)[1])
        }
        # The PReLU of each BatchNorm that scales for it.
        self._scaling = {
            norm: prelu
            for norm, prelu in consumers.items()
            if prelu not in self._absorbed and self._can_scale(norm, prelu, weights)
        }
        # t of every BatchNorm that scales, by its index here.
        self._factors_of_norms: dict[int, Entry] = {}

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
        source = node["inputs"][0][0] if inputs else -1
        if index in self._scaling:
            slope = self.given[self._scaling[index]]["inputs"][1]
            return self._add_scaling_norm(node, inputs, moved(slope, self.indices))
        if source in self._scaling:
            return self._add_prelu_of_scaled(node["name"], inputs[0], self.shape(source)[1])
        if index in self._absorbed:
            return inputs[0][0]
        if source in self._absorbed:
            slope = moved(self.given[source]["inputs"][1], self.indices)
            return self._add_absorbing(node, inputs, slope)
        if self.is_prelu_on_maps(index):
            return self._add_prelu(node["name"], inputs, self.shape(source)[1])
        return super().make(index)

    def _can_scale(self, norm: int, prelu: int, weights: Mapping[str, Any]) -> bool:
        """Return True for a BatchNorm that can apply the factor of its only consumer."""
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
        if any(self.given[i]["op"] != "null" or self.shape(i) != channels for i, *_ in factors):
            return False
        # Steep slopes and those that are not numbers are computed as they are.
        slope = weights.get(self.given[factors[-1][0]]["name"])
        return slope is None or float(slope.min().asscalar()) > -STEEPNESS

    def _add_scaling_norm(self, node: Node, inputs: list[Entry], slope: Entry) -> int:
        """Append a BatchNorm of t x, given x, gamma, beta, the rest, and the slope, all [C]."""
        name = node["name"]
        x, gamma, beta, *statistics = inputs
        raised = self.operator("_plus_scalar", f"{name}_raised", [slope], scalar=STEEPNESS)
        t = self.operator("_div_scalar", f"{name}_factor", [raised], scalar=1 + STEEPNESS)
        scaled = [
            self.operator("elemwise_mul", f"{name}_scaled_{part}", [value, t])
            for part, value in (("gamma", gamma), ("beta", beta))
        ]
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
        linear_factor, bent_factor = self._factors(name, slope, (channels, 1, 1, 1))
        linear = self.scale(f"{name}_linear", x, linear_factor, channels)
        bent = self.scale(f"{name}_bent", self._positive(name, x), bent_factor, channels)
        return self.operator("elemwise_add", name, [linear, bent])[0]

    def _add_absorbing(self, node: Node, inputs: list[Entry], slope: Entry) -> int:
        """Append a convolution of PReLU(x), given x, its kernel, and the slope [channels]."""
        name, attributes = node["name"], node["attrs"]
        x, kernel = inputs
        # A kernel is [outputs, inputs of the group, height, width].
        is_dense = attributes.get("num_group", "1") == "1"
        factors = self._factors(name, slope, (1, -1, 1, 1) if is_dense else (-1, 1, 1, 1))
        parts = []
        for part, maps, factor in zip(("linear", "bent"), (x, self._positive(name, x)), factors):
            own = self.operator("broadcast_mul", f"{name}_{part}_kernel", [factor, kernel])
            parts.append(self.operator("Convolution", f"{name}_{part}", [maps, own], **attributes))
        return self.operator("elemwise_add", name, parts)[0]

    def _factors(self, name: str, slope: Entry, shape: tuple[int, ...]) -> tuple[Entry, Entry]:
        """Append the factors of x and of relu(x)."""
        linear = self.operator("Reshape", f"{name}_slope", [slope], shape=shape)
        return linear, self.operator("_rminus_scalar", f"{name}_bend", [linear], scalar="1.0")

    def _positive(self, name: str, x: Entry) -> Entry:
        return self.operator("Activation", f"{name}_positive", [x], act_type="relu")
