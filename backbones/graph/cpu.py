"""The form of a graph that runs on a CPU; it computes the same, from the same parameters.

MXNet hands convolutions, BatchNorm, ReLU and sums to oneDNN, which keeps the maps in blocks of 16
channels, but not PReLU: that one runs in a loop of its own, whose backward pass takes longer than
the convolution beside it, and every map is converted to the plain layout before it and back after
it. So PReLU is put together from what oneDNN has:

    PReLU(x) = slope * x + (1 - slope) * relu(x)

in which a factor per channel is a depthwise convolution of one pixel. The usual split into the
positive and the negative part needs a difference, which oneDNN does not compute here either.

A BatchNorm has a factor per channel anyway. One that leads to nothing but a PReLU takes one of the
two: with z = t x from the BatchNorm, and bent(z) = z where z is positive, -STEEPNESS z elsewhere,

    PReLU(x) = z + (1 / t - 1) * bent(z)    with t = (slope + STEEPNESS) / (1 + STEEPNESS)

is x where x is positive and slope * x elsewhere, as long as t is positive: slope > -STEEPNESS.
Trained slopes are between -1 and 1 or so.

Where a PReLU leads to nothing but a convolution that is depthwise, or of one pixel and to no more
channels, as in a MobileFaceNet, even those passes over the maps are too many. There the factors go
into the kernel K, and it is cheaper to convolve twice:

    K * PReLU(x) = (slope K) * x + ((1 - slope) K) * relu(x)

Graphs that are created and graphs that are read from checkpoints take the same way. What is written
to disk is never this form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from backbones.graph.nodes import Node, first_shapes
from backbones.layers import Symbol
from runtime.mxnet import mx

STEEPNESS = 31.0
"""What no slope comes near. A power of two less 1, so that 1 + STEEPNESS divides exactly."""


def rewrite(
    symbol: Symbol, image_size: tuple[int, int], weights: Mapping[str, Any] = MappingProxyType({})
) -> Symbol:
    """Return the graph with every PReLU on feature maps in terms of oneDNN's operators.

    Args:
        symbol: a graph with the input ``data``.
        image_size: height and width of the images.
        weights: NDArrays that it begins with, as far as they are known. A PReLU with a slope that
            is too steep for it leaves the BatchNorm before it alone.

    Returns:
        A graph with the same parameters, names of outputs, outputs and gradients.
    """
    shapes = first_shapes(symbol, (1, 3, *image_size))
    channels = {name: shape[1] for name, shape in shapes.items() if len(shape) == 4}
    graph = json.loads(symbol.tojson())
    nodes: list[Node] = graph["nodes"]
    consumers = _consumers(nodes, graph["heads"])
    absorbed = _absorbed_prelus(nodes, consumers, channels)
    # The PReLU of each BatchNorm that scales for it.
    scaling = {
        norm: prelu
        for norm, prelu in _scaling_norms(nodes, consumers, channels, shapes).items()
        if prelu not in absorbed and not _is_steep(nodes[prelu], nodes, weights)
    }
    writer = _Writer()
    # Where the output of each node of the given graph is to be found in the new one; for a PReLU
    # that goes into the next convolution, where its input is.
    moved: dict[int, int] = {}
    # Variables before operators: a BatchNorm may need the slope of a later PReLU.
    for number, node in sorted(enumerate(nodes), key=lambda item: item[1]["op"] != "null"):
        inputs = [_moved(entry, moved) for entry in node["inputs"]]
        source = node["inputs"][0][0] if inputs else -1
        if node["op"] == "null" and node["name"] != "data":
            # Nobody could tell the shape of a parameter from that of its product.
            known = {"__shape__": str(shapes[node["name"]])}
            moved[number] = writer.add({**node, "attrs": {**node.get("attrs", {}), **known}})
        elif number in scaling:
            slope = _moved(nodes[scaling[number]]["inputs"][1], moved)
            moved[number] = writer.add_scaling_norm(node, inputs, slope)
        elif source in scaling:
            moved[number] = writer.add_prelu_of_scaled(
                node["name"], inputs[0], channels[nodes[source]["name"]]
            )
        elif number in absorbed:
            moved[number] = inputs[0][0]
        elif source in absorbed:
            slope = _moved(nodes[source]["inputs"][1], moved)
            moved[number] = writer.add_absorbing(node, inputs, slope)
        elif _is_prelu_on_maps(node, nodes, channels):
            moved[number] = writer.add_prelu(node["name"], inputs, channels[nodes[source]["name"]])
        else:
            moved[number] = writer.add({**node, "inputs": inputs})
    heads = [_moved(entry, moved) for entry in graph["heads"]]
    return mx.sym.load_json(writer.to_json(heads, graph["attrs"]))


def _moved(entry: list[int], moved: dict[int, int]) -> list[int]:
    """Return an entry of ``inputs`` or ``heads`` for the new graph."""
    return [moved[entry[0]], *entry[1:]]


def _consumers(nodes: list[Node], heads: list[list[int]]) -> dict[int, list[int]]:
    """Return the operators whose maps the first output of each node is, by their numbers.

    Any other use, as another input, of another output or as what the graph puts out, is -1.
    """
    found: dict[int, list[int]] = {}
    for node_number, *_ in heads:
        found.setdefault(node_number, []).append(-1)
    for number, node in enumerate(nodes):
        for place, entry in enumerate(node["inputs"]):
            found.setdefault(entry[0], []).append(number if place == entry[1] == 0 else -1)
    return found


def _absorbed_prelus(
    nodes: list[Node], consumers: dict[int, list[int]], channels: dict[str, int]
) -> set[int]:
    """Return the PReLUs on maps whose factors can go into the convolution behind them."""
    found = set()
    for number, node in enumerate(nodes):
        after = consumers.get(number, [])
        if _is_prelu_on_maps(node, nodes, channels) and len(after) == 1 and after[0] >= 0:
            source = nodes[node["inputs"][0][0]]
            if _is_cheap(nodes[after[0]], channels[source["name"]]):
                found.add(number)
    return found


def _scaling_norms(
    nodes: list[Node],
    consumers: dict[int, list[int]],
    channels: dict[str, int],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[int, int]:
    """Return the BatchNorms that lead to nothing but a PReLU on maps, and that PReLU."""

    def is_parameter(entry: list[int]) -> bool:
        # Anything computed may come too late for the BatchNorm.
        node = nodes[entry[0]]
        return node["op"] == "null" and shapes[node["name"]] == (channels.get(name),)

    found = {}
    for number, node in enumerate(nodes):
        name, attributes = node["name"], node.get("attrs", {})
        after = consumers.get(number, [])
        if (
            node["op"] == "BatchNorm"
            and attributes.get("fix_gamma") == "False"
            and attributes.get("axis", "1") == "1"
            and len(after) == 1
            and after[0] >= 0
            and _is_prelu_on_maps(nodes[after[0]], nodes, channels)
            and all(map(is_parameter, [*node["inputs"][1:3], nodes[after[0]]["inputs"][1]]))
        ):
            found[number] = after[0]
    return found


def _is_steep(prelu: Node, nodes: list[Node], weights: Mapping[str, Any]) -> bool:
    slope = weights.get(nodes[prelu["inputs"][1][0]]["name"])
    return slope is not None and not float(slope.min().asscalar()) > -STEEPNESS


def _is_cheap(node: Node, channels: int) -> bool:
    """Whether this is a convolution of ``channels`` that takes no longer than the passes saved."""
    if node["op"] != "Convolution" or node["attrs"].get("no_bias") != "True":
        return False
    outputs, groups = (int(node["attrs"].get(key, "1")) for key in ("num_filter", "num_group"))
    if groups == channels:
        return outputs == channels
    return groups == 1 and node["attrs"]["kernel"] == "(1, 1)" and outputs <= channels


def _is_prelu_on_maps(node: Node, nodes: list[Node], channels: dict[str, int]) -> bool:
    attributes: dict[str, str] = node.get("attrs", {})
    if node["op"] != "LeakyReLU" or attributes.get("act_type") != "prelu":
        return False
    source, output, *_ = node["inputs"][0]
    # The maps have to be the first output of their operator, as those of all layers are.
    return output == 0 and nodes[source]["name"] in channels


class _Writer:
    """The nodes of a graph in MXNet's JSON; an entry of ``inputs`` is [node, output, version]."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        # t of every BatchNorm that scales, by the number of the node.
        self._factors_of_norms: dict[int, list[int]] = {}

    def add(self, node: Node) -> int:
        """Append a node; returns its number."""
        self._nodes.append(node)
        return len(self._nodes) - 1

    def add_scaling_norm(self, node: Node, inputs: list[list[int]], slope: list[int]) -> int:
        """Append a BatchNorm of t x, given x, gamma, beta, the rest, and the slope, all [C]."""
        name = node["name"]
        x, gamma, beta, *statistics = inputs
        raised = self._operator("_plus_scalar", f"{name}_raised", [slope], scalar=str(STEEPNESS))
        factor = self._operator(
            "_div_scalar", f"{name}_factor", [raised], scalar=str(1 + STEEPNESS)
        )
        scaled = [
            self._operator("elemwise_mul", f"{name}_scaled_{part}", [value, factor])
            for part, value in (("gamma", gamma), ("beta", beta))
        ]
        number = self.add({**node, "inputs": [x, *scaled, *statistics]})
        self._factors_of_norms[number] = factor
        return number

    def add_prelu_of_scaled(self, name: str, z: list[int], channels: int) -> int:
        """Append a PReLU of x, given t x of ``add_scaling_norm``; the last node has its name."""
        inverse = self._operator(
            "_rdiv_scalar", f"{name}_inverse", [self._factors_of_norms[z[0]]], scalar="1.0"
        )
        bend = self._operator("_minus_scalar", f"{name}_factor", [inverse], scalar="1.0")
        kernel = self._operator(
            "Reshape", f"{name}_bent_kernel", [bend], shape=str((channels, 1, 1, 1))
        )
        bent = self._operator(
            "LeakyReLU", f"{name}_bend", [z], act_type="leaky", slope=str(-STEEPNESS)
        )
        scaled = self._scale(f"{name}_bent", [bent, kernel], channels)
        # MXNet makes the sum in the place of the part that is not needed any more, and oneDNN only
        # in that of its first; otherwise it would be copied.
        return self._operator("elemwise_add", name, [scaled, z])[0]

    def add_prelu(self, name: str, inputs: list[list[int]], channels: int) -> int:
        """Append a PReLU of x and slope [channels]; the last of its nodes has its name."""
        x, slope = inputs
        linear_factor, bent_factor = self._factors(name, slope, (channels, 1, 1, 1))
        linear = self._scale(f"{name}_linear", [x, linear_factor], channels)
        bent = self._scale(f"{name}_bent", [self._positive(name, x), bent_factor], channels)
        return self._operator("elemwise_add", name, [linear, bent])[0]

    def add_absorbing(self, node: Node, inputs: list[list[int]], slope: list[int]) -> int:
        """Append a convolution of PReLU(x), given x, its kernel, and the slope [channels]."""
        name, attributes = node["name"], node["attrs"]
        x, kernel = inputs
        # A kernel is [outputs, inputs of the group, height, width].
        dense = attributes.get("num_group", "1") == "1"
        factors = self._factors(name, slope, (1, -1, 1, 1) if dense else (-1, 1, 1, 1))
        parts = []
        for part, maps, factor in zip(("linear", "bent"), (x, self._positive(name, x)), factors):
            own_name = f"{name}_{part}"
            own = self._operator("broadcast_mul", f"{own_name}_kernel", [factor, kernel])
            parts.append(self._operator("Convolution", own_name, [maps, own], **attributes))
        return self._operator("elemwise_add", name, parts)[0]

    def _factors(
        self, name: str, slope: list[int], shape: tuple[int, ...]
    ) -> tuple[list[int], list[int]]:
        """Append the factors of x and of relu(x)."""
        linear = self._operator("Reshape", f"{name}_slope", [slope], shape=str(shape))
        return linear, self._operator("_rminus_scalar", f"{name}_bend", [linear], scalar="1.0")

    def _positive(self, name: str, x: list[int]) -> list[int]:
        return self._operator("Activation", f"{name}_positive", [x], act_type="relu")

    def _scale(self, name: str, inputs: list[list[int]], channels: int) -> list[int]:
        return self._operator(
            "Convolution",
            name,
            inputs,
            kernel="(1, 1)",
            num_filter=str(channels),
            num_group=str(channels),
            no_bias="True",
        )

    def _operator(
        self, op: str, name: str, inputs: list[list[int]], **attributes: str
    ) -> list[int]:
        return [self.add({"op": op, "name": name, "attrs": attributes, "inputs": inputs}), 0, 0]

    def to_json(self, heads: list[list[int]], attributes: dict[str, Any]) -> str:
        """Return the graph whose outputs are ``heads``."""
        variables = [number for number, node in enumerate(self._nodes) if node["op"] == "null"]
        return json.dumps(
            {"nodes": self._nodes, "arg_nodes": variables, "heads": heads, "attrs": attributes}
        )
