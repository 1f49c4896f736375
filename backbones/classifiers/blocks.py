"""The few blocks of which the classifiers are built.

A graph does not know the channels of its maps, so whoever needs them is told. Every network of this
package is a function ``features`` from normalized pixels [batch, channels, height, width] to
features [batch, n]; the registry puts the normalization before it and the output layer behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from backbones.layers import Symbol, batch_norm, convolution, relu
from runtime.mxnet import mx


class Unit(NamedTuple):
    """One of the repeated parts of a network."""

    name: str
    stage: int
    """Which stage it belongs to, from 0."""
    stride: int
    """The first unit of a stage has the stage's stride, the others 1."""
    is_first: bool


def units(counts: Sequence[int], strides: Sequence[int]) -> Iterator[Unit]:
    """Yield the units of all stages: ``counts[i]`` in stage i, which begins with ``strides[i]``."""
    for stage, (count, stride) in enumerate(zip(counts, strides)):
        for number in range(count):
            name = f"stage{stage + 1}_unit{number + 1}"
            yield Unit(name, stage, 1 if number else stride, not number)


def conv_norm(
    x: Symbol, name: str, channels: int, *, kernel: int, stride: int = 1, groups: int = 1
) -> Symbol:
    """Return a convolution without bias and its BatchNorm."""
    x = convolution(x, name, channels, kernel=kernel, stride=stride, groups=groups)
    return batch_norm(x, f"{name}_bn")


def conv_norm_relu(
    x: Symbol, name: str, channels: int, *, kernel: int, stride: int = 1, groups: int = 1
) -> Symbol:
    """Return a convolution without bias, its BatchNorm, and ReLU."""
    x = conv_norm(x, name, channels, kernel=kernel, stride=stride, groups=groups)
    return relu(x, f"{name}_relu")


def norm_relu(x: Symbol, name: str) -> Symbol:
    """Return BatchNorm and ReLU, which stand before a convolution in pre-activated networks."""
    return relu(batch_norm(x, name), f"{name}_relu")


def basic(x: Symbol, name: str, *, in_channels: int, channels: int, stride: int) -> Symbol:
    """Return a residual unit of two 3x3 convolutions (He et al., arXiv:1512.03385)."""
    residual = conv_norm_relu(x, f"{name}_conv1", channels, kernel=3, stride=stride)
    residual = conv_norm(residual, f"{name}_conv2", channels, kernel=3)
    x = shortcut(x, name, in_channels=in_channels, channels=channels, stride=stride)
    return relu(x + residual, f"{name}_relu")


def bottleneck(
    x: Symbol,
    name: str,
    *,
    in_channels: int,
    width: int,
    channels: int,
    stride: int,
    groups: int = 1,
    squeezed: int = 0,
) -> Symbol:
    """Return a residual unit of convolutions 1x1, 3x3, 1x1; the stride is in the middle one.

    Args:
        x: the maps.
        name: of the unit.
        in_channels: of ``x``.
        width: channels between the convolutions.
        channels: of the unit's output.
        stride: of the unit.
        groups: of the 3x3 convolution (ResNeXt: Xie et al., arXiv:1611.05431).
        squeezed: hidden numbers of squeeze-and-excitation behind the 3x3 convolution; 0 for none.
    """
    residual = conv_norm_relu(x, f"{name}_conv1", width, kernel=1)
    residual = conv_norm_relu(
        residual, f"{name}_conv2", width, kernel=3, stride=stride, groups=groups
    )
    if squeezed:
        residual = squeeze_excite(residual, f"{name}_se", width, squeezed)
    residual = conv_norm(residual, f"{name}_conv3", channels, kernel=1)
    x = shortcut(x, name, in_channels=in_channels, channels=channels, stride=stride)
    return relu(x + residual, f"{name}_relu")


def shortcut(x: Symbol, name: str, *, in_channels: int, channels: int, stride: int) -> Symbol:
    """Return ``x`` itself, or its projection where a unit changes the size or the channels."""
    if stride == 1 and in_channels == channels:
        return x
    return conv_norm(x, f"{name}_shortcut", channels, kernel=1, stride=stride)


def squeeze_excite(x: Symbol, name: str, channels: int, squeezed: int) -> Symbol:
    """Return the maps, each weighted by what all of them show (Hu et al., arXiv:1709.01507)."""
    weights = mx.sym.Pooling(x, global_pool=True, pool_type="avg", name=f"{name}_pool")
    weights = relu(biased_convolution(weights, f"{name}_conv1", squeezed), f"{name}_relu")
    weights = mx.sym.sigmoid(
        biased_convolution(weights, f"{name}_conv2", channels), name=f"{name}_sigmoid"
    )
    return mx.sym.broadcast_mul(x, weights, name=f"{name}_mul")


def biased_convolution(x: Symbol, name: str, channels: int, *, kernel: int = 1) -> Symbol:
    """Return a convolution with bias that keeps the size of the maps."""
    pad = kernel // 2
    return mx.sym.Convolution(
        x, num_filter=channels, kernel=(kernel, kernel), pad=(pad, pad), name=name
    )


def max_pool(x: Symbol, name: str) -> Symbol:
    """Return the maps at half of their size: the largest of 2x2 pixels."""
    return mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name=name)


def average_pool(x: Symbol, name: str) -> Symbol:
    """Return the maps at half of their size: the mean of 2x2 pixels."""
    return mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="avg", name=name)


def pooled(x: Symbol) -> Symbol:
    """Return the mean of each map: features [batch, channels]."""
    x = mx.sym.Pooling(x, global_pool=True, pool_type="avg", name="pool")
    return mx.sym.Flatten(x, name="features")
