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

At last convolutions get channels that fill oneDNN's blocks (``backbones.graph.onednn.form``).
Both created graphs and graphs from checkpoints are rewritten. Files never contain rewritten graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Optional

from backbones.graph.nodes import (
    Entry,
    NewNodes,
    Node,
    consumers,
    first_shapes,
    from_json,
    moved,
    to_json,
)
from backbones.graph.onednn import form
from backbones.layers import Symbol

STEEPNESS = 31.0
"""Slopes are above -STEEPNESS. 1 + STEEPNESS is a power of two, so that divisions are exact."""


def rewrite(
    symbol: Symbol,
    image_size: tuple[int, int],
    weights: Mapping[str, Any] = MappingProxyType({}),
    dtype: str = "float32",
) -> Symbol:
    """Return the graph with oneDNN's operators for PReLU on maps, and full blocks of channels.

    It has the same parameters, names of outputs, outputs and gradients.

    Args:
        symbol: a graph with the input ``data``.
        image_size: height and width of the images.
        weights: NDArrays of the initial parameters, as far as they are known. A PReLU with a slope
            of -STEEPNESS or less does not use the BatchNorm before it.
        dtype: float32, or bfloat16 for a CPU with tiles. There a convolution takes longer than the
            passes that it saves by applying factors.
    """
    graph = _Graph(symbol, image_size)
    absorbed = graph.absorbed_prelus() if dtype == "float32" else set()
    # The PReLU of each BatchNorm that scales for it.
    scaling = {
        norm: prelu
        for norm, prelu in graph.scaling_norms().items()
        if prelu not in absorbed and not graph.is_steep(prelu, weights)
    }
    builder = _GraphBuilder()
    # The index in the new graph of each node's output; for an absorbed PReLU, of its input.
    indices: dict[int, int] = {}
    # Variables before operators: a BatchNorm may need the slope of a later PReLU.
    for index, node in sorted(enumerate(graph.nodes), key=lambda item: item[1]["op"] != "null"):
        name, inputs = node["name"], [moved(entry, indices) for entry in node["inputs"]]
        source = node["inputs"][0][0] if inputs else -1
        if node["op"] == "null" and name != "data":
            # MXNet cannot infer the shape of a parameter from that of its product.
            known = {"__shape__": str(graph.shapes[name])}
            indices[index] = builder.add({**node, "attrs": {**node.get("attrs", {}), **known}})
        elif index in scaling:
            slope = moved(graph.nodes[scaling[index]]["inputs"][1], indices)
            indices[index] = builder.add_scaling_norm(node, inputs, slope)
        elif source in scaling:
            channels = graph.channels(source)
            indices[index] = builder.add_prelu_of_scaled(name, inputs[0], channels)
        elif index in absorbed:
            indices[index] = inputs[0][0]
        elif source in absorbed:
            slope = moved(graph.nodes[source]["inputs"][1], indices)
            indices[index] = builder.add_absorbing(node, inputs, slope)
        elif graph.is_prelu_on_maps(index):
            indices[index] = builder.add_prelu(name, inputs, graph.channels(source))
        else:
            indices[index] = builder.add({**node, "inputs": inputs})
    heads = [moved(entry, indices) for entry in graph.heads]
    composed = from_json(builder.nodes, heads, graph.attributes)
    return form.fill(composed, (1, 3, *image_size), dtype)


class _Graph:
    """The nodes of the given graph, by index, and which of them can be rewritten."""

    def __init__(self, symbol: Symbol, image_size: tuple[int, int]) -> None:
        graph = to_json(symbol)
        self.nodes: list[Node] = graph["nodes"]
        self.heads: list[Entry] = graph["heads"]
        self.attributes: dict[str, Any] = graph["attrs"]
        self.shapes = first_shapes(symbol, (1, 3, *image_size))
        self._consumers = consumers(self.nodes, self.heads)

    def absorbed_prelus(self) -> set[int]:
        """Return the PReLUs on maps whose factors the only consumer, a convolution, can apply."""
        found = set()
        for index in filter(self.is_prelu_on_maps, range(len(self.nodes))):
            consumer = self._only_consumer(index)
            source = self.nodes[index]["inputs"][0][0]
            if consumer is not None and _is_cheap(self.nodes[consumer], self.channels(source)):
                found.add(index)
        return found

    def scaling_norms(self) -> dict[int, int]:
        """Return the BatchNorms whose only consumer is a PReLU on maps, and that PReLU."""
        found = {}
        for index, node in enumerate(self.nodes):
            attributes, prelu = node.get("attrs", {}), self._only_consumer(index)
            if (
                node["op"] == "BatchNorm"
                and attributes.get("fix_gamma") == "False"
                and attributes.get("axis", "1") == "1"
                and prelu is not None
                and self.is_prelu_on_maps(prelu)
            ):
                factors = [*node["inputs"][1:3], self.nodes[prelu]["inputs"][1]]
                # A factor that is computed may come too late for the BatchNorm.
                if all(self._is_parameter(entry[0], self.channels(index)) for entry in factors):
                    found[index] = prelu
        return found

    def is_steep(self, prelu: int, weights: Mapping[str, Any]) -> bool:
        """Whether a known slope of a PReLU is -STEEPNESS or less, or not a number."""
        slope = weights.get(self.nodes[self.nodes[prelu]["inputs"][1][0]]["name"])
        return slope is not None and not float(slope.min().asscalar()) > -STEEPNESS

    def is_prelu_on_maps(self, index: int) -> bool:
        """Whether a node is a PReLU of the first output of a node, and that is feature maps."""
        node = self.nodes[index]
        if node["op"] != "LeakyReLU" or node.get("attrs", {}).get("act_type") != "prelu":
            return False
        source, output, *_ = node["inputs"][0]
        return output == 0 and len(self.shapes[self.nodes[source]["name"]]) == 4

    def channels(self, index: int) -> int:
        """Return the channels of a node's first output."""
        return self.shapes[self.nodes[index]["name"]][1]

    def _is_parameter(self, index: int, channels: int) -> bool:
        node = self.nodes[index]
        return node["op"] == "null" and self.shapes[node["name"]] == (channels,)

    def _only_consumer(self, index: int) -> Optional[int]:
        consumers = self._consumers.get(index, [])
        return consumers[0] if len(consumers) == 1 and consumers[0] >= 0 else None


def _is_cheap(node: Node, channels: int) -> bool:
    """Whether this is a convolution of ``channels`` that takes no longer than the passes saved."""
    if node["op"] != "Convolution" or node["attrs"].get("no_bias") != "True":
        return False
    outputs, groups = (int(node["attrs"].get(key, "1")) for key in ("num_filter", "num_group"))
    if groups == channels:
        return outputs == channels
    return groups == 1 and node["attrs"]["kernel"] == "(1, 1)" and outputs <= channels


class _GraphBuilder(NewNodes):
    """The nodes of the rewritten graph."""

    def __init__(self) -> None:
        super().__init__()
        # t of every BatchNorm that scales, by its index.
        self._factors_of_norms: dict[int, Entry] = {}

    def add_scaling_norm(self, node: Node, inputs: list[Entry], slope: Entry) -> int:
        """Append a BatchNorm of t x, given x, gamma, beta, the rest, and the slope, all [C]."""
        name = node["name"]
        x, gamma, beta, *statistics = inputs
        raised = self.operator("_plus_scalar", f"{name}_raised", [slope], scalar=str(STEEPNESS))
        t = self.operator("_div_scalar", f"{name}_factor", [raised], scalar=str(1 + STEEPNESS))
        scaled = [
            self.operator("elemwise_mul", f"{name}_scaled_{part}", [value, t])
            for part, value in (("gamma", gamma), ("beta", beta))
        ]
        index = self.add({**node, "inputs": [x, *scaled, *statistics]})
        self._factors_of_norms[index] = t
        return index

    def add_prelu_of_scaled(self, name: str, z: Entry, channels: int) -> int:
        """Append a PReLU of x, given t x of ``add_scaling_norm``; the last node has its name."""
        t = self._factors_of_norms[z[0]]
        inverse = self.operator("_rdiv_scalar", f"{name}_inverse", [t], scalar="1.0")
        bend = self.operator("_minus_scalar", f"{name}_factor", [inverse], scalar="1.0")
        shape = str((channels, 1, 1, 1))
        kernel = self.operator("Reshape", f"{name}_bent_kernel", [bend], shape=shape)
        bent = self.operator(
            "LeakyReLU", f"{name}_bend", [z], act_type="leaky", slope=str(-STEEPNESS)
        )
        scaled = self._scale(f"{name}_bent", [bent, kernel], channels)
        # MXNet writes the sum over an input that is not needed any more, but oneDNN only over the
        # first; in the other order it would be copied.
        return self.operator("elemwise_add", name, [scaled, z])[0]

    def add_prelu(self, name: str, inputs: list[Entry], channels: int) -> int:
        """Append a PReLU of x and slope [channels]; the last of its nodes has its name."""
        x, slope = inputs
        linear_factor, bent_factor = self._factors(name, slope, (channels, 1, 1, 1))
        linear = self._scale(f"{name}_linear", [x, linear_factor], channels)
        bent = self._scale(f"{name}_bent", [self._positive(name, x), bent_factor], channels)
        return self.operator("elemwise_add", name, [linear, bent])[0]

    def add_absorbing(self, node: Node, inputs: list[Entry], slope: Entry) -> int:
        """Append a convolution of PReLU(x), given x, its kernel, and the slope [channels]."""
        name, attributes = node["name"], node["attrs"]
        x, kernel = inputs
        # A kernel is [outputs, inputs of the group, height, width].
        dense = attributes.get("num_group", "1") == "1"
        factors = self._factors(name, slope, (1, -1, 1, 1) if dense else (-1, 1, 1, 1))
        parts = []
        for part, maps, factor in zip(("linear", "bent"), (x, self._positive(name, x)), factors):
            own = self.operator("broadcast_mul", f"{name}_{part}_kernel", [factor, kernel])
            parts.append(self.operator("Convolution", f"{name}_{part}", [maps, own], **attributes))
        return self.operator("elemwise_add", name, parts)[0]

    def _factors(self, name: str, slope: Entry, shape: tuple[int, ...]) -> tuple[Entry, Entry]:
        """Append the factors of x and of relu(x)."""
        linear = self.operator("Reshape", f"{name}_slope", [slope], shape=str(shape))
        return linear, self.operator("_rminus_scalar", f"{name}_bend", [linear], scalar="1.0")

    def _positive(self, name: str, x: Entry) -> Entry:
        return self.operator("Activation", f"{name}_positive", [x], act_type="relu")

    def _scale(self, name: str, inputs: list[Entry], channels: int) -> Entry:
        sizes = {"kernel": "(1, 1)", "num_filter": str(channels), "num_group": str(channels)}
        return self.operator("Convolution", name, inputs, **sizes, no_bias="True")
