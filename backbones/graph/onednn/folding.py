"""The graph for inference on a CPU: the same output from fewer passes over the feature maps.

In training, a BatchNorm and a PReLU are passes of their own over maps that are larger than a
processor's caches. Where the weights do not change, a BatchNorm is a factor and a shift for each
channel, which go into the kernel and the bias of the convolution or linear layer before it:

    gamma * (K x - mean) / sqrt(variance + eps) + beta = (f K) x + (beta - f mean)
    with f = gamma / sqrt(variance + eps)

A PReLU is composed of what oneDNN has, as in ``backbones.graph.onednn.prelu``, with bent(z) = z
where z is positive and -STEEPNESS z elsewhere:

    PReLU(x) = z + (1 / t - 1) * bent(z)    with z = t x, t = (slope + STEEPNESS) / (1 + STEEPNESS)

Its factor t goes into the layer before it, too. The product is a depthwise convolution of one pixel
that oneDNN adds to z in place.

oneDNN can add a convolution to what its output array holds, and apply a function to the result
while that is in registers. MXNet has an operator for this, ``_sg_mkldnn_conv``, and a pass that
puts it into a graph. That pass joins a convolution with an activation also where the sum behind it
needs the convolution itself (MXNet 1.9.1), so the operators are written here.

The operator keeps the kernel in oneDNN's layout, and its primitive, from the first call on: a graph
with it is for inference, with weights that do not change. MXNet makes its operators anew for images
of another shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from backbones.graph.nodes import (
    Entry,
    Graph,
    Node,
    Rewriter,
    Shape,
    from_json,
    moved,
    only_consumers,
    part_of,
    to_json,
)
from backbones.graph.onednn import blocked, narrow
from backbones.graph.onednn.channels import is_bend
from backbones.graph.onednn.prelu import STEEPNESS
from backbones.layers import Symbol
from runtime.mxnet import mx

Weights = Mapping[str, NDArray[Any]]
Values = dict[str, NDArray[Any]]

_SUMS = ("_Plus", "_plus", "broadcast_add", "broadcast_plus", "elemwise_add")
_EPSILON = "1e-3"
"""MXNet's default."""
_UNUSED = "constants_unused"


def fold(
    symbol: Symbol, weights: Weights, image_shape: Shape, dtype: str = "float32"
) -> tuple[Symbol, dict[str, Any]]:
    """Return the graph for inference on a CPU, and NDArrays of its parameters.

    These have other names and values than those of the float32 graph that is given; the outputs are
    the same up to rounding. ``dtype`` is that of maps and products: float32, or bfloat16 for a CPU
    with tiles.
    """
    batch_shape = (1, *image_shape)
    folding = _Folding(symbol, batch_shape, weights)
    folded = folding.rewrite()
    if dtype == "bfloat16":
        filled = narrow.rewrite(folded, batch_shape)
    else:
        # Without a backward pass, where padding saves nothing it costs nothing either.
        filled = blocked.rewrite(folded, batch_shape, trains=False)
    values = {name: mx.nd.array(value) for name, value in folding.values.items()}
    graph, values = _without_constants(filled, values)
    joined = from_json(join(graph))
    return joined, {name: values[name] for name in joined.list_inputs() if name in values}


def _without_constants(symbol: Symbol, values: Mapping[str, Any]) -> tuple[Graph, dict[str, Any]]:
    """Compute what depends on parameters alone: kernels that are cast, padded, put on a diagonal.

    Such operators have one output. Returns the part of the graph that depends on its input, and the
    parameters that it reads, NDArrays.
    """
    graph = to_json(symbol)
    nodes: list[Node] = graph["nodes"]
    kept: set[int] = set()
    read: set[int] = set()
    for index, node in enumerate(nodes):
        inputs = {entry[0] for entry in node["inputs"]}
        if node["name"] == "data" or kept & inputs:
            kept.add(index)
            read |= inputs
    read -= kept
    computed = [index for index in sorted(read) if nodes[index]["op"] != "null"]
    own = {nodes[index]["name"]: values[nodes[index]["name"]] for index in read - set(computed)}
    if computed:
        # A CachedOp refuses a graph that reads nothing, so the last head is an input.
        unused: Node = {"op": "null", "name": _UNUSED, "inputs": []}
        heads = [[index, 0, 0] for index in (*computed, len(nodes))]
        part = from_json({**graph, "nodes": [*nodes, unused], "heads": heads})
        given = {**values, _UNUSED: mx.nd.zeros(1)}
        results = mx.nd.CachedOp(part)(*(given[name] for name in part.list_inputs()))
        own.update((nodes[index]["name"], value) for index, value in zip(computed, results))
    return part_of(graph, kept | read, read, graph["heads"]), own


class _Folding(Rewriter):
    """The folded graph; ``values`` are its parameters."""

    def __init__(self, symbol: Symbol, batch_shape: Shape, weights: Weights) -> None:
        super().__init__(symbol, batch_shape)
        self._consumers = only_consumers(self._graph)
        self._weights = weights
        self.values: Values = {}
        # The parameters of the new graph's layers, which no other node reads: the output is
        # proportional to them, and the last is its shift.
        self._scalable: dict[int, list[str]] = {}

    @override
    def make(self, index: int) -> int:
        node = self.given[index]
        if node["op"] == "null" and node["name"] in self._weights:
            self.values[node["name"]] = self._weights[node["name"]]
        if self._is_layer(index):
            return self._add_layer(index)
        if self._is_norm(index):
            return self._add_norm(index)
        if self._is_prelu(index):
            return self._add_prelu(index)
        op = "elemwise_add" if self._is_sum(index) else node["op"]
        return self.add({**node, "op": op, "inputs": self.inputs(index)})

    def _is_layer(self, index: int) -> bool:
        """Whether a node is a layer of known weights that turns channels into channels."""
        node = self.given[index]
        if node["op"] not in ("Convolution", "FullyConnected"):
            return False
        if not self._is_known(node["inputs"][1:]):
            return False
        if node["op"] == "Convolution":
            return len(self.shape(index)) == 4
        return bool(node.get("attrs", {}).get("flatten", "True") == "True")

    def _add_layer(self, index: int) -> int:
        """Append a layer with a bias, and with parameters of its own."""
        node = self.given[index]
        name, (kernel, *bias) = node["name"], self._read(node["inputs"][1:])
        shift = bias[0] if bias else np.zeros(len(kernel))
        own = {f"{name}_own_weight": kernel, f"{name}_own_bias": shift}
        inputs = [self.inputs(index)[0], *map(self._parameter, own, own.values())]
        attributes = {**node.get("attrs", {}), "no_bias": "False"}
        made = self.add({**node, "attrs": attributes, "inputs": inputs})
        self._scalable[made] = list(own)
        return made

    def _is_norm(self, index: int) -> bool:
        """Whether a node is a BatchNorm of known statistics along the second axis."""
        node = self.given[index]
        attributes = node.get("attrs", {})
        return (
            node["op"] == "BatchNorm"
            and attributes.get("axis", "1") == "1"
            and self._is_known(node["inputs"][1:])
        )

    def _add_norm(self, index: int) -> int:
        """Fold a BatchNorm into the layer before it, or append it as it is."""
        node = self.given[index]
        attributes = node.get("attrs", {})
        gamma, beta, mean, variance = self._read(node["inputs"][1:])
        if attributes.get("fix_gamma", "True") == "True":
            gamma = np.ones_like(gamma)
        source = node["inputs"][0][0]
        layer = self.indices[source]
        if layer in self._scalable and self._consumers.get(source) == index:
            factor = gamma / np.sqrt(variance + float(attributes.get("eps", _EPSILON)))
            self._scale(layer, factor)
            self.values[self._scalable[layer][-1]] += beta - factor * mean
            return layer
        return super().make(index)

    def _is_prelu(self, index: int) -> bool:
        """Whether a node is a PReLU of maps by slopes that are known numbers."""
        slope = self.given[index]["inputs"][1:]
        return (
            self.is_prelu_on_maps(index)
            and self._is_known(slope)
            and bool(np.isfinite(self._read(slope)[0]).all())
        )

    def _add_prelu(self, index: int) -> int:
        """Append a PReLU of what oneDNN has."""
        node = self.given[index]
        name, source = node["name"], node["inputs"][0][0]
        x, layer = self.inputs(index)[0], self.indices[source]
        (slope,) = self._read(node["inputs"][1:])
        slope = np.broadcast_to(slope.ravel(), self.shape(source)[1])
        if np.all(slope == slope[0]):
            leak = float(slope[0])
            return self.operator("LeakyReLU", name, [x], act_type="leaky", slope=leak)[0]
        is_own = layer in self._scalable and self._consumers.get(source) == index
        if is_own and slope.min() > -STEEPNESS:
            t = (slope + STEEPNESS) / (1 + STEEPNESS)
            self._scale(layer, t)
            bend = {"act_type": "leaky", "slope": -STEEPNESS}
            bent = self.operator("LeakyReLU", f"{name}_bend", [x], **bend)
            scaled = self._product(f"{name}_bent", bent, 1 / t - 1)
        else:
            # x - (1 - slope) min(x, 0), where -min(x, 0) = relu(-x).
            turned = self._product(f"{name}_turned", x, np.full(len(slope), -1.0))
            below = self.operator("Activation", f"{name}_below", [turned], act_type="relu")
            scaled = self._product(f"{name}_raised", below, 1 - slope)
        return self.operator("elemwise_add", name, [scaled, x])[0]

    def _product(self, name: str, maps: Entry, factor: NDArray[Any]) -> Entry:
        """Append the product of maps and a factor for each channel."""
        kernel = self._parameter(f"{name}_factor", factor.reshape(-1, 1, 1, 1))
        return self.scale(name, maps, kernel, len(factor))

    def _scale(self, index: int, factor: NDArray[Any]) -> None:
        """Multiply the output of a scalable node by a factor for each channel."""
        for name in self._scalable[index]:
            value = self.values[name]
            self.values[name] = value * factor.reshape(-1, *[1] * (value.ndim - 1))

    def _is_sum(self, index: int) -> bool:
        """Whether a node adds two tensors of one shape, under whatever name."""
        node = self.given[index]
        shapes = {self.shape(entry[0]) for entry in node["inputs"]}
        return node["op"] in _SUMS and len(shapes) == 1

    def _is_known(self, entries: list[Entry]) -> bool:
        return all(self.given[entry[0]]["name"] in self._weights for entry in entries)

    def _read(self, entries: list[Entry]) -> list[NDArray[Any]]:
        """Return the values of parameters in float64, so that each is rounded once."""
        names = [self.given[entry[0]]["name"] for entry in entries]
        return [self._weights[name].astype(np.float64) for name in names]

    def _parameter(self, name: str, value: NDArray[Any]) -> Entry:
        """Append a parameter of one node alone."""
        self.values[name] = value
        # MXNet cannot infer it from that of a product.
        known = {"__shape__": str(value.shape)}
        return [self.add({"op": "null", "name": name, "attrs": known, "inputs": []}), 0, 0]


def join(graph: Graph) -> Graph:
    """Return a graph with every convolution, sum and activation joined."""
    nodes, chains = graph["nodes"], _chains(graph)
    inner = {index for chain in chains.values() for index in chain[:-1]}
    joined: list[Node] = []
    indices: dict[int, int] = {}
    for index, node in enumerate(nodes):
        if index in inner:
            continue
        made = node
        if index in chains:
            made = _operator([nodes[i] for i in chains[index]], chains[index])
        inputs = [moved(entry, indices) for entry in made["inputs"]]
        indices[index] = len(joined)
        joined.append({**made, "inputs": inputs})
    heads = [moved(entry, indices) for entry in graph["heads"]]
    return {**graph, "nodes": joined, "heads": heads}


def _chains(graph: Graph) -> dict[int, list[int]]:
    """Return the nodes of each operator, beginning with a convolution, by the index of the last."""
    nodes, only = graph["nodes"], only_consumers(graph, any_input=True)
    chains: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        before = [entry[0] for entry in node["inputs"]]
        if node["op"] == "Convolution":
            chains[index] = [index]
        elif node["op"] == "elemwise_add":
            # If two convolutions are added, the later one adds to the output of the other.
            for source in sorted(before, reverse=True):
                if only.get(source) == index and len(chains.get(source, ())) == 1:
                    chains[index] = [*chains.pop(source), index]
                    break
        elif is_bend(node) and only.get(before[0]) == index and before[0] in chains:
            if not is_bend(nodes[before[0]]):
                chains[index] = [*chains.pop(before[0]), index]
    return chains


def _operator(chain: list[Node], indices: list[int]) -> Node:
    """Return the operator that stands for a convolution and what is behind it."""
    inputs, summed = list(chain[0]["inputs"]), False
    inner: list[Node] = [{"op": "null", "name": f"in{i}", "inputs": []} for i in range(len(inputs))]
    inner.append({**chain[0], "inputs": [[i, 0, 0] for i in range(len(inputs))]})
    attributes = {}
    for before, node in zip(indices, chain[1:]):
        entries = [[len(inner) - 1, 0, 0]]
        if node["op"] == "elemwise_add":
            (other,) = (entry for entry in node["inputs"] if entry[0] != before)
            inputs.append(other)
            inner.append({"op": "null", "name": "sum", "inputs": []})
            entries.append([len(inner) - 1, 0, 0])
            attributes["with_sum"], summed = "true", True
        else:
            attributes["with_postsum_act" if summed else "with_act"] = "true"
        inner.append({**node, "inputs": entries})
    variables = [i for i, node in enumerate(inner) if node["op"] == "null"]
    subgraph: dict[str, Any] = {"nodes": inner, "arg_nodes": variables}
    subgraph["heads"] = [[len(inner) - 1, 0, 0]]
    return {
        "op": "_sg_mkldnn_conv",
        "name": chain[-1]["name"],
        "attrs": attributes,
        "inputs": inputs,
        "subgraphs": [subgraph],
    }
