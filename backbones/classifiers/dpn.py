"""DPN92 for small images: in each unit some maps are residual, and some new ones are appended.

Chen et al., Dual Path Networks, arXiv:1707.01629.
"""

from __future__ import annotations

from backbones.classifiers.blocks import conv_norm, conv_norm_relu, pooled, units
from backbones.layers import Symbol, relu
from runtime.mxnet import mx

_STEM = 64
_GROUPS = 32
_COUNTS = (3, 4, 20, 3)
_STRIDES = (1, 2, 2, 2)
_WIDTHS = (96, 192, 384, 768)
_RESIDUAL = (256, 512, 1024, 2048)
_APPENDED = (16, 32, 24, 128)


def features(x: Symbol) -> Symbol:
    """Return the features [batch, 2048 + 4 * 128] of ``x``."""
    x = conv_norm_relu(x, "conv0", _STEM, kernel=3)
    for unit in units(_COUNTS, _STRIDES):
        residual, appended = _RESIDUAL[unit.stage], _APPENDED[unit.stage]
        added = conv_norm_relu(x, f"{unit.name}_conv1", _WIDTHS[unit.stage], kernel=1)
        added = conv_norm_relu(
            added,
            f"{unit.name}_conv2",
            _WIDTHS[unit.stage],
            kernel=3,
            stride=unit.stride,
            groups=_GROUPS,
        )
        added = conv_norm(added, f"{unit.name}_conv3", residual + appended, kernel=1)
        if unit.is_first:
            x = conv_norm(
                x, f"{unit.name}_shortcut", residual + appended, kernel=1, stride=unit.stride
            )
        x = relu(_join(x, added, residual, unit.name), f"{unit.name}_relu")
    return pooled(x)


def _join(x: Symbol, added: Symbol, residual: int, name: str) -> Symbol:
    """Return the sum of the first ``residual`` maps, then all other maps of both."""
    parts = [
        mx.sym.slice_axis(maps, axis=1, begin=begin, end=end, name=f"{name}_{part}_{kind}")
        for kind, maps in (("old", x), ("new", added))
        for part, begin, end in (("residual", 0, residual), ("appended", residual, None))
    ]
    old_residual, old_appended, new_residual, new_appended = parts
    return mx.sym.concat(
        old_residual + new_residual, old_appended, new_appended, dim=1, name=f"{name}_concat"
    )
