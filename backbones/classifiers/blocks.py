"""Blocks that the classifiers share.

A graph does not know how many channels its maps have, so blocks take the numbers as arguments.
Every classifier of this package is a function from normalized pixels [batch, channels, height,
width] to features [batch, n]; the registry adds the normalization and the output layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from backbones.layers import Symbol, batch_norm, convolution, relu
from runtime.mxnet import mx


class Unit(NamedTuple):
    """Name and sizes of one of the repeated units of a network."""

    name: str
    in_channels: int
    channels: int
    stride: int

    @property
    def is_projected(self) -> bool:
        """Whether input and output differ in shape, so that the shortcut needs a projection."""
        return self.stride != 1 or self.in_channels != self.channels

    def child(self, name: str) -> Unit:
        """Return a unit of the same sizes inside of this one."""
        return self._replace(name=f"{self.name}_{name}")

    def same_size(self) -> Unit:
        """Return a unit whose input and output have the shape of this one's output."""
        return self._replace(in_channels=self.channels, stride=1)


def units(
    counts: Sequence[int], strides: Sequence[int], channels: Sequence[int], *, stem: int
) -> Iterator[Unit]:
    """Yield the units of all stages, the first of which has ``stem`` channels as its input.

    Each stage has a count of units, the stride of its first unit (the others have 1), and channels.
    """
    for stage, (count, stride, width) in enumerate(zip(counts, strides, channels), start=1):
        unit = Unit("", stem, width, stride)
        for number in range(1, count + 1):
            yield unit._replace(name=f"stage{stage}_unit{number}")
            unit = unit.same_size()
        stem = width


def conv_norm(x: Symbol, name: str, channels: int, **sizes: int) -> Symbol:
    """Return a convolution and its BatchNorm; for ``sizes`` see ``layers.convolution``."""
    return batch_norm(convolution(x, name, channels, **sizes), f"{name}_bn")


def conv_norm_relu(x: Symbol, name: str, channels: int, **sizes: int) -> Symbol:
    """Return ``conv_norm`` and ReLU."""
    return relu(conv_norm(x, name, channels, **sizes), f"{name}_relu")


def norm_relu(x: Symbol, name: str) -> Symbol:
    """Return BatchNorm and ReLU, which precede a convolution in pre-activated networks."""
    return relu(batch_norm(x, name), f"{name}_relu")


def basic(x: Symbol, unit: Unit) -> Symbol:
    """Return a residual unit of two 3x3 convolutions (He et al., arXiv:1512.03385)."""
    name, channels = unit.name, unit.channels
    residual = conv_norm_relu(x, f"{name}_conv1", channels, kernel=3, stride=unit.stride)
    return add_relu(x, conv_norm(residual, f"{name}_conv2", channels, kernel=3), unit)


def bottleneck(x: Symbol, unit: Unit, *, width: int, groups: int = 1, squeezed: int = 0) -> Symbol:
    """Return the residual of convolutions 1x1, 3x3 (with the stride) and 1x1.

    Between them are ``width`` channels; the 3x3 convolution has ``groups``, and squeeze-and-
    excitation with ``squeezed`` hidden channels after it, unless that is 0.
    """
    name = unit.name
    x = conv_norm_relu(x, f"{name}_conv1", width, kernel=1)
    x = conv_norm_relu(x, f"{name}_conv2", width, kernel=3, stride=unit.stride, groups=groups)
    if squeezed:
        x = squeeze_excite(x, f"{name}_se", width, squeezed)
    return conv_norm(x, f"{name}_conv3", unit.channels, kernel=1)


def add_relu(x: Symbol, residual: Symbol, unit: Unit) -> Symbol:
    """Return ReLU of the sum of a unit's shortcut and its residual."""
    return relu(shortcut(x, unit) + residual, f"{unit.name}_relu")


def shortcut(x: Symbol, unit: Unit) -> Symbol:
    """Return ``x`` itself, or its projection where a unit changes the size or the channels."""
    if not unit.is_projected:
        return x
    return conv_norm(x, f"{unit.name}_shortcut", unit.channels, kernel=1, stride=unit.stride)


def squeeze_excite(x: Symbol, name: str, channels: int, squeezed: int) -> Symbol:
    """Return the maps times a weight per channel, computed from the means of all maps.

    Hu et al., Squeeze-and-Excitation Networks, arXiv:1709.01507.
    """
    weights = mx.sym.Pooling(x, global_pool=True, pool_type="avg", name=f"{name}_pool")
    weights = relu(biased_convolution(weights, f"{name}_conv1", squeezed), f"{name}_relu")
    weights = biased_convolution(weights, f"{name}_conv2", channels)
    weights = mx.sym.sigmoid(weights, name=f"{name}_sigmoid")
    return mx.sym.broadcast_mul(x, weights, name=f"{name}_mul")


def biased_convolution(
    x: Symbol, name: str, channels: int, *, kernel: int = 1, stride: int = 1
) -> Symbol:
    """Return a convolution with bias; the padding keeps the size at stride 1."""
    pad, strides = kernel // 2, {} if stride == 1 else {"stride": (stride, stride)}
    return mx.sym.Convolution(
        x, num_filter=channels, kernel=(kernel, kernel), pad=(pad, pad), name=name, **strides
    )


def pool(x: Symbol, name: str, pool_type: str) -> Symbol:
    """Return the maps at half of their size: the maximum ("max") or mean ("avg") of 2x2 pixels."""
    return mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type=pool_type, name=name)


def global_average(x: Symbol) -> Symbol:
    """Return the mean of each map: features [batch, channels]."""
    x = mx.sym.Pooling(x, global_pool=True, pool_type="avg", name="pool")
    return mx.sym.Flatten(x, name="features")
