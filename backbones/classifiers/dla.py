"""Deep layer aggregation for small images: residual units as leaves of trees that join their maps.

Yu et al., Deep Layer Aggregation, arXiv:1707.06484. ``DLA`` has the trees of the paper, in which a
root joins all of its subtrees, ``SimpleDLA`` binary ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from backbones.classifiers.blocks import basic, conv_norm_relu, pooled
from backbones.layers import Symbol
from runtime.mxnet import mx

_STEM = (16, 16, 32)
# Per stage: channels, depth of its tree, stride.
_STAGES = ((64, 1, 1), (128, 2, 2), (256, 2, 2), (512, 1, 2))


def features(x: Symbol, *, has_binary_trees: bool = False) -> Symbol:
    """Return the features [batch, 512] of ``x``."""
    for number, channels in enumerate(_STEM):
        x = conv_norm_relu(x, f"conv{number}", channels, kernel=3)
    in_channels = _STEM[-1]
    grow = _binary_tree if has_binary_trees else _tree
    for stage, (channels, depth, stride) in enumerate(_STAGES, start=1):
        x = grow(x, f"stage{stage}", depth, in_channels, channels, stride)
        in_channels = channels
    return pooled(x)


def _tree(x: Symbol, name: str, depth: int, in_channels: int, channels: int, stride: int) -> Symbol:
    """Return the maps of a tree: its subtrees one after the other, and all that they put out."""
    joined = []
    if depth > 1:
        joined.append(_leaf(x, f"{name}_before", in_channels, channels, stride))
    for level in range(depth - 1, 0, -1):
        x = _tree(x, f"{name}_level{level}", level, in_channels, channels, stride)
        joined.append(x)
        in_channels, stride = channels, 1
    left = _leaf(x, f"{name}_left", in_channels, channels, stride)
    right = _leaf(left, f"{name}_right", channels, channels, 1)
    return _root([*joined, left, right], name, channels)


def _binary_tree(
    x: Symbol, name: str, depth: int, in_channels: int, channels: int, stride: int
) -> Symbol:
    """Return the maps of a tree whose root joins two subtrees."""
    if depth == 1:
        return _tree(x, name, 1, in_channels, channels, stride)
    left = _binary_tree(x, f"{name}_left", depth - 1, in_channels, channels, stride)
    right = _binary_tree(left, f"{name}_right", depth - 1, channels, channels, 1)
    return _root([left, right], name, channels)


def _leaf(x: Symbol, name: str, in_channels: int, channels: int, stride: int) -> Symbol:
    return basic(x, name, in_channels=in_channels, channels=channels, stride=stride)


def _root(parts: Sequence[Symbol], name: str, channels: int) -> Symbol:
    joined = mx.sym.concat(*parts, dim=1, name=f"{name}_concat")
    return conv_norm_relu(joined, f"{name}_root", channels, kernel=1)
