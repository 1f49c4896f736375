"""MobileNetV2 for small images: narrow between the units, wide and depthwise within them.

Sandler et al., Inverted Residuals and Linear Bottlenecks, arXiv:1801.04381. The strides are those
of the CIFAR-10 tutorial, as is the projection around units that change the channels only.
"""

from __future__ import annotations

from backbones.classifiers.blocks import conv_norm, conv_norm_relu, pooled, shortcut, units
from backbones.layers import Symbol

_STEM, _LAST = 32, 1280
# Per stage: channels inside over channels before, channels behind, units, stride.
_EXPANSIONS = (1, 6, 6, 6, 6, 6, 6)
_CHANNELS = (16, 24, 32, 64, 96, 160, 320)
_COUNTS = (1, 2, 3, 4, 3, 3, 1)
_STRIDES = (1, 1, 2, 2, 1, 2, 1)


def features(x: Symbol) -> Symbol:
    """Return the features [batch, 1280] of ``x``."""
    x = conv_norm_relu(x, "conv0", _STEM, kernel=3)
    in_channels = _STEM
    for unit in units(_COUNTS, _STRIDES):
        channels = _CHANNELS[unit.stage]
        width = _EXPANSIONS[unit.stage] * in_channels
        x = _unit(x, unit.name, in_channels, width, channels, unit.stride)
        in_channels = channels
    return pooled(conv_norm_relu(x, "conv1", _LAST, kernel=1))


def _unit(x: Symbol, name: str, in_channels: int, width: int, channels: int, stride: int) -> Symbol:
    residual = conv_norm_relu(x, f"{name}_conv1", width, kernel=1)
    residual = conv_norm_relu(
        residual, f"{name}_conv2", width, kernel=3, stride=stride, groups=width
    )
    residual = conv_norm(residual, f"{name}_conv3", channels, kernel=1)
    if stride != 1:
        return residual
    return shortcut(x, name, in_channels=in_channels, channels=channels, stride=1) + residual
