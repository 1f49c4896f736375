"""ResNeXt29 for small images: bottlenecks whose 3x3 convolution is split into groups.

Xie et al., Aggregated Residual Transformations for Deep Neural Networks, arXiv:1611.05431.
"""

from __future__ import annotations

from backbones.classifiers.blocks import bottleneck, conv_norm_relu, pooled, units
from backbones.layers import Symbol

_STEM = 64
_EXPANSION = 2


def features(x: Symbol, *, groups: int, group_width: int) -> Symbol:
    """Return the features [batch, 8 * groups * group_width] of ``x``.

    Args:
        x: normalized pixels.
        groups: of each 3x3 convolution (the paper's cardinality).
        group_width: channels of a group in the first stage; each further stage doubles them.
    """
    x = conv_norm_relu(x, "conv0", _STEM, kernel=1)
    in_channels = _STEM
    for unit in units((3, 3, 3), (1, 2, 2)):
        width = groups * group_width << unit.stage
        channels = _EXPANSION * width
        x = bottleneck(
            x,
            unit.name,
            in_channels=in_channels,
            width=width,
            channels=channels,
            stride=unit.stride,
            groups=groups,
        )
        in_channels = channels
    return pooled(x)
