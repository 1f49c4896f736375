"""ResNet for small images: no pooling behind the first convolution, which is 3x3.

He et al., Deep Residual Learning for Image Recognition, arXiv:1512.03385.
"""

from __future__ import annotations

from collections.abc import Sequence

from backbones.classifiers.blocks import basic, bottleneck, conv_norm_relu, pooled, units
from backbones.layers import Symbol

_STEM = 64
_WIDTHS = (64, 128, 256, 512)
_STRIDES = (1, 2, 2, 2)
_EXPANSION = 4


def features(x: Symbol, *, counts: Sequence[int], has_bottlenecks: bool = False) -> Symbol:
    """Return the features [batch, 512], or [batch, 2048] with bottlenecks, of ``x``.

    Args:
        x: normalized pixels.
        counts: the units of each of the four stages.
        has_bottlenecks: whether a unit has three convolutions, not two.
    """
    x = conv_norm_relu(x, "conv0", _STEM, kernel=3)
    in_channels = _STEM
    for unit in units(counts, _STRIDES):
        width = _WIDTHS[unit.stage]
        sizes = {"in_channels": in_channels, "stride": unit.stride}
        if has_bottlenecks:
            in_channels = _EXPANSION * width
            x = bottleneck(x, unit.name, width=width, channels=in_channels, **sizes)
        else:
            in_channels = width
            x = basic(x, unit.name, channels=in_channels, **sizes)
    return pooled(x)
