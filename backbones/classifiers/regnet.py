"""RegNet for small images: grouped bottlenecks without expansion, found by searching design spaces.

Radosavovic et al., Designing Network Design Spaces, arXiv:2003.13678; Y is X with
squeeze-and-excitation.
"""

from __future__ import annotations

from collections.abc import Sequence

from backbones.classifiers.blocks import bottleneck, conv_norm_relu, pooled, units
from backbones.layers import Symbol

_STEM = 64
_STRIDES = (1, 1, 2, 2)


def features(
    x: Symbol,
    *,
    counts: Sequence[int],
    widths: Sequence[int],
    group_width: int,
    squeezed_share: float = 0.0,
) -> Symbol:
    """Return the features [batch, widths[3]] of ``x``.

    Args:
        x: normalized pixels.
        counts: the units of each of the four stages.
        widths: the channels of each stage.
        group_width: the channels of a group of the 3x3 convolutions.
        squeezed_share: hidden numbers of squeeze-and-excitation, as a share of a unit's input.
    """
    x = conv_norm_relu(x, "conv0", _STEM, kernel=3)
    in_channels = _STEM
    for unit in units(counts, _STRIDES):
        width = widths[unit.stage]
        x = bottleneck(
            x,
            unit.name,
            in_channels=in_channels,
            width=width,
            channels=width,
            stride=unit.stride,
            groups=width // group_width,
            squeezed=round(in_channels * squeezed_share),
        )
        in_channels = width
    return pooled(x)
