"""ResNet18 for small images with BatchNorm and ReLU before each convolution.

He et al., Identity Mappings in Deep Residual Networks, arXiv:1603.05027. Like the CIFAR-10 tutorial
that it belongs to, without the BatchNorm of that paper behind the last unit.
"""

from __future__ import annotations

from backbones.classifiers.blocks import norm_relu, pooled, units
from backbones.layers import Symbol, convolution

_STEM = 64
_WIDTHS = (64, 128, 256, 512)


def features(x: Symbol) -> Symbol:
    """Return the features [batch, 512] of ``x``."""
    x = convolution(x, "conv0", _STEM, kernel=3)
    in_channels = _STEM
    for unit in units((2, 2, 2, 2), (1, 2, 2, 2)):
        channels = _WIDTHS[unit.stage]
        x = _unit(x, unit.name, in_channels, channels, unit.stride)
        in_channels = channels
    return pooled(x)


def _unit(x: Symbol, name: str, in_channels: int, channels: int, stride: int) -> Symbol:
    activated = norm_relu(x, f"{name}_bn1")
    if stride != 1 or in_channels != channels:
        x = convolution(activated, f"{name}_shortcut", channels, kernel=1, stride=stride)
    residual = convolution(activated, f"{name}_conv1", channels, kernel=3, stride=stride)
    residual = norm_relu(residual, f"{name}_bn2")
    return x + convolution(residual, f"{name}_conv2", channels, kernel=3)
