"""A graph of ours in PyTorch: each node is the layer, or the function, that PyTorch has for it.

So every network can be measured beside PyTorch, from the same weights and without a second list
of its layers. A graph comes as the JSON that MXNet writes; nothing of MXNet is imported.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

# A function from tensors to a tensor. PyTorch is not installed where types are checked.
Layer = Any

_ACTIVATIONS = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid}
_POOLS = {"max": nn.MaxPool2d, "avg": nn.AvgPool2d}
_FUNCTIONS: dict[str, Layer] = {
    "elemwise_add": torch.add,
    "broadcast_mul": torch.mul,
    "sigmoid": torch.sigmoid,
}
# Attributes that say what PyTorch's layer does anyway.
_IMPLIED = {
    *("no_bias", "num_args", "cudnn_off", "axes", "workspace", "layout"),
    *("cudnn_tune", "use_global_stats", "pooling_convention"),
}


def load(folder: Path) -> GraphNetwork:
    """Return the network of ``graph.json`` and ``weights.npz`` in a folder."""
    with np.load(folder / "weights.npz") as weights:
        return GraphNetwork(json.loads((folder / "graph.json").read_text()), weights)


class Node(NamedTuple):
    """A node that computes: its layer, and the numbers of the nodes that it reads."""

    layer: Layer
    inputs: tuple[int, ...]
    last_uses: tuple[int, ...]
    """The inputs that no later node reads."""


class GraphNetwork(nn.Module):
    """The network of a graph with the input ``data`` and one output."""

    def __init__(
        self, graph: Mapping[str, Any], weights: Mapping[str, NDArray[np.float32]]
    ) -> None:
        """Build the layers.

        Args:
            graph: as MXNet writes it.
            weights: the values of all its variables but ``data``, by name.

        Raises:
            ValueError: the graph has an operator, or one of its attributes, that is not known here.
        """
        super().__init__()
        self._source = graph["nodes"]
        self._layers = nn.ModuleList()
        (output,) = graph["heads"]
        self._output = output[0]
        self._data = next(n for n, node in enumerate(self._source) if node["name"] == "data")
        computing = [number for number, node in enumerate(self._source) if node["op"] != "null"]
        readers = {number: self._inputs(number) for number in computing}
        last = {read: number for number in computing for read in readers[number]}
        self._plan = {
            number: Node(
                self._layer(self._source[number], weights),
                readers[number],
                tuple({read for read in readers[number] if last[read] == number}),
            )
            for number in computing
        }

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the output for images [b, c, height, width] with pixels 0-255."""
        values = {self._data: images}
        for number, (layer, inputs, last_uses) in self._plan.items():
            values[number] = layer(*(values[read] for read in inputs))
            for read in last_uses:
                del values[read]
        return values[self._output]

    def _inputs(self, number: int) -> tuple[int, ...]:
        """What a node reads of other nodes; variables belong to its layer."""
        read = [entry[0] for entry in self._source[number]["inputs"]]
        return tuple(n for n in read if n == self._data or self._source[n]["op"] != "null")

    def _layer(self, node: Mapping[str, Any], weights: Mapping[str, NDArray[np.float32]]) -> Layer:
        attributes = {key: _value(text) for key, text in (node.get("attrs") or {}).items()}
        variables = [self._source[entry[0]]["name"] for entry in node["inputs"]]
        arrays = [
            torch.from_numpy(np.array(weights[name])) for name in variables if name in weights
        ]
        operator = node["op"]
        if operator in _FUNCTIONS:
            return _FUNCTIONS[operator]
        if operator not in _BUILDERS:
            raise ValueError(f"{node['name']}: the operator {operator} is not known here")
        layer = _BUILDERS[operator](attributes, arrays)
        unknown = set(attributes) - _IMPLIED
        if unknown:
            raise ValueError(f"{node['name']}: {operator} with {sorted(unknown)} is not known here")
        if isinstance(layer, nn.Module):
            self._layers.append(layer)
        return layer


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except ValueError:
        # A name.
        return text


# What builds a layer takes its attributes out of the dictionary, so that a rest is found.


def _convolution(attributes: dict[str, Any], arrays: Sequence[torch.Tensor]) -> Layer:
    weight, *bias = arrays
    groups = attributes.pop("num_group", 1)
    layer = nn.Conv2d(
        weight.shape[1] * groups,
        attributes.pop("num_filter"),
        attributes.pop("kernel"),
        attributes.pop("stride", 1),
        attributes.pop("pad", 0),
        attributes.pop("dilate", 1),
        groups,
        bool(bias),
    )
    return _filled(layer, arrays)


def _linear(attributes: dict[str, Any], arrays: Sequence[torch.Tensor]) -> Layer:
    weight, *bias = arrays
    attributes.pop("num_hidden")
    linear: Layer = _filled(nn.Linear(weight.shape[1], weight.shape[0], bool(bias)), arrays)
    return nn.Sequential(nn.Flatten(), linear) if attributes.pop("flatten", True) else linear


def _norm(attributes: dict[str, Any], arrays: Sequence[torch.Tensor]) -> Layer:
    gamma, beta, mean, variance = arrays
    layer = _Norm(
        len(gamma), eps=attributes.pop("eps", 1e-3), momentum=1 - attributes.pop("momentum", 0.9)
    )
    fixed = attributes.pop("fix_gamma", True)
    _filled(layer, [torch.ones_like(gamma) if fixed else gamma, beta])
    layer.weight.requires_grad_(not fixed)
    with torch.no_grad():
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(variance)
    return layer


class _Norm(nn.BatchNorm2d):
    """Of maps [b, c, height, width] and of vectors [b, c]."""

    def _check_input_dim(self, maps: torch.Tensor) -> None:
        assert maps.dim() in (2, 4), maps.shape


def _filled(layer: Any, arrays: Sequence[torch.Tensor]) -> Any:
    with torch.no_grad():
        for parameter, array in zip(layer.parameters(), arrays):
            parameter.copy_(array)
    return layer


def _pooling(attributes: dict[str, Any], _: Sequence[torch.Tensor]) -> Layer:
    kind = attributes.pop("pool_type", "max")
    kernel = attributes.pop("kernel", None)
    stride, pad = attributes.pop("stride", 1), attributes.pop("pad", 0)
    ceil = attributes.get("pooling_convention", "valid") == "full"
    if attributes.pop("global_pool", False):
        return nn.AdaptiveAvgPool2d(1) if kind == "avg" else nn.AdaptiveMaxPool2d(1)
    counted = (
        {"count_include_pad": attributes.pop("count_include_pad", True)} if kind == "avg" else {}
    )
    return _POOLS[kind](kernel, stride, pad, ceil_mode=ceil, **counted)


def _slice(attributes: dict[str, Any], _: Sequence[torch.Tensor]) -> Layer:
    axis, begin, end = (attributes.pop(name) for name in ("axis", "begin", "end"))
    return lambda maps: maps.narrow(axis, begin, (maps.shape[axis] if end is None else end) - begin)


def _normalize(attributes: dict[str, Any], _: Sequence[torch.Tensor]) -> Layer:
    mean, deviation = (
        torch.tensor(attributes.pop(name)).reshape(-1, 1, 1) for name in ("mean", "std")
    )
    return lambda images: (images - mean) / deviation


def _by_scalar(function: Layer) -> Layer:
    """Return a builder of what computes with a scalar."""

    def build(attributes: dict[str, Any], _: Sequence[torch.Tensor]) -> Layer:
        scalar = attributes.pop("scalar")
        return lambda images: function(images, scalar)

    return build


def _slopes(attributes: dict[str, Any], arrays: Sequence[torch.Tensor]) -> Layer:
    assert attributes.pop("act_type") == "prelu"
    return _filled(nn.PReLU(arrays[0].numel()), arrays)


def _cast(attributes: dict[str, Any], _: Sequence[torch.Tensor]) -> Layer:
    dtype = getattr(torch, attributes.pop("dtype"))
    return lambda tensor: tensor.to(dtype)


def _concatenate(attributes: dict[str, Any], _: Sequence[torch.Tensor]) -> Layer:
    axis = attributes.pop("dim", 1)
    return lambda *maps: torch.cat(maps, axis)


def _clip(attributes: dict[str, Any], _: Sequence[torch.Tensor]) -> Layer:
    return nn.Hardtanh(attributes.pop("a_min"), attributes.pop("a_max"))


_BUILDERS: dict[str, Callable[[dict[str, Any], Sequence[torch.Tensor]], Layer]] = {
    "Activation": lambda attributes, _: _ACTIVATIONS[attributes.pop("act_type")](),
    "BatchNorm": _norm,
    "Cast": _cast,
    "Concat": _concatenate,
    "Convolution": _convolution,
    "Dropout": lambda attributes, _: nn.Dropout(attributes.pop("p", 0.5)),
    "Flatten": lambda *_: nn.Flatten(),
    "FullyConnected": _linear,
    "LeakyReLU": _slopes,
    "Pooling": _pooling,
    "_div_scalar": _by_scalar(torch.div),
    "_image_normalize": _normalize,
    "_minus_scalar": _by_scalar(torch.sub),
    "_mul_scalar": _by_scalar(torch.mul),
    "clip": _clip,
    "slice_axis": _slice,
}
