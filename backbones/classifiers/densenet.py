"""DenseNet121 for small images: each unit adds 32 maps to all that are there already.

Huang et al., Densely Connected Convolutional Networks, arXiv:1608.06993, with bottlenecks and
compression.
"""

from __future__ import annotations

from backbones.classifiers.blocks import average_pool, norm_relu, pooled, units
from backbones.layers import Symbol, convolution
from runtime.mxnet import mx

_GROWTH = 32
_COUNTS = (6, 12, 24, 16)


def features(x: Symbol) -> Symbol:
    """Return the features [batch, 1024] of ``x``."""
    channels = 2 * _GROWTH
    x = convolution(x, "conv0", channels, kernel=3)
    for unit in units(_COUNTS, (1, 1, 1, 1)):
        if unit.is_first and unit.stage:
            # Half of the maps, at half of their size.
            channels //= 2
            name = f"transition{unit.stage}"
            x = convolution(norm_relu(x, f"{name}_bn"), f"{name}_conv", channels, kernel=1)
            x = average_pool(x, f"{name}_pool")
        x = mx.sym.concat(_unit(x, unit.name), x, dim=1, name=f"{unit.name}_concat")
        channels += _GROWTH
    return pooled(norm_relu(x, "bn"))


def _unit(x: Symbol, name: str) -> Symbol:
    x = convolution(norm_relu(x, f"{name}_bn1"), f"{name}_conv1", 4 * _GROWTH, kernel=1)
    return convolution(norm_relu(x, f"{name}_bn2"), f"{name}_conv2", _GROWTH, kernel=3)
