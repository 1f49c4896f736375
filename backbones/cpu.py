"""The form of a graph that runs on a CPU; it computes the same, from the same parameters.

MXNet hands convolutions, BatchNorm, ReLU and sums to oneDNN, which keeps the maps in blocks of 16
channels, but not PReLU: that one runs in a loop of its own, whose backward pass takes longer than
the convolution beside it, and every map is converted to the plain layout before it and back after
it. So PReLU is put together from what oneDNN has:

    PReLU(x) = slope * x + (1 - slope) * relu(x)

in which a factor per channel is a depthwise convolution of one pixel. The usual split into the
positive and the negative part needs a difference, which oneDNN does not compute here either.

Graphs that are created and graphs that are read from checkpoints take the same way. What is written
to disk is never this form.
"""

from __future__ import annotations

import json
from typing import Any

from backbones.layers import Symbol
from runtime.mxnet import mx

_Node = dict[str, Any]


def form(symbol: Symbol, image_size: tuple[int, int]) -> Symbol:
    """Return the graph with every PReLU on feature maps in terms of oneDNN's operators.

    Args:
        symbol: a graph with the input ``data``.
        image_size: height and width of the images.

    Returns:
        A graph with the same parameters, names of outputs, outputs and gradients.
    """
    channels = _channels_of_maps(symbol, image_size)
    graph = json.loads(symbol.tojson())
    writer = _Writer()
    # Where the output of each node of the given graph is to be found in the new one.
    moved: list[int] = []
    for node in graph["nodes"]:
        inputs = [[moved[entry[0]], *entry[1:]] for entry in node["inputs"]]
        source = graph["nodes"][node["inputs"][0][0]]["name"] if inputs else ""
        if _is_prelu(node) and source in channels:
            moved.append(writer.add_prelu(node["name"], inputs, channels[source]))
        else:
            moved.append(writer.add({**node, "inputs": inputs}))
    heads = [[moved[entry[0]], *entry[1:]] for entry in graph["heads"]]
    return mx.sym.load_json(writer.to_json(heads, graph["attrs"]))


def _is_prelu(node: _Node) -> bool:
    attributes: dict[str, str] = node.get("attrs", {})
    return bool(node["op"] == "LeakyReLU" and attributes.get("act_type") == "prelu")


def _channels_of_maps(symbol: Symbol, image_size: tuple[int, int]) -> dict[str, int]:
    """Return the channels of each operator whose output is [batch, channels, height, width]."""
    internals = symbol.get_internals()
    _, shapes, _ = internals.infer_shape(data=(1, 3, *image_size))
    return {
        name[: -len("_output")]: shape[1]
        for name, shape in zip(internals.list_outputs(), shapes)
        if name.endswith("_output") and len(shape) == 4
    }


class _Writer:
    """The nodes of a graph in MXNet's JSON; an entry of ``inputs`` is [node, output, version]."""

    def __init__(self) -> None:
        self._nodes: list[_Node] = []

    def add(self, node: _Node) -> int:
        """Append a node; returns its number."""
        self._nodes.append(node)
        return len(self._nodes) - 1

    def add_prelu(self, name: str, inputs: list[list[int]], channels: int) -> int:
        """Append a PReLU of x and slope [channels]; the last of its nodes has its name."""
        x, slope = inputs
        kernel = {"shape": str((channels, 1, 1, 1))}
        linear_factor = self._operator("Reshape", f"{name}_slope", [slope], **kernel)
        bent_factor = self._operator(
            "_rminus_scalar", f"{name}_bend", [linear_factor], scalar="1.0"
        )
        positive = self._operator("Activation", f"{name}_positive", [x], act_type="relu")
        linear = self._scale(f"{name}_linear", [x, linear_factor], channels)
        bent = self._scale(f"{name}_bent", [positive, bent_factor], channels)
        return self._operator("elemwise_add", name, [linear, bent])[0]

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
