"""Classifiers that concatenate feature maps of several units: Inception, DenseNet, DPN and DLA.

All are the variants for small images: the first convolution keeps the image size, and no pooling
follows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from backbones.classifiers.blocks import (
    Unit,
    basic,
    biased_convolution,
    bottleneck,
    conv_norm,
    conv_norm_relu,
    global_average,
    norm_relu,
    pool,
)
from backbones.layers import DEFAULT_EPSILON, Symbol, batch_norm, convolution, relu
from runtime.mxnet import mx

# Per stage: channels inside a unit, residual maps, maps that each unit appends.
_DPN_STAGES = ((96, 256, 16), (192, 512, 32), (384, 1024, 24), (768, 2048, 128))
# Per stage: channels, depth of its tree, stride.
_DLA_STAGES = ((64, 1, 1), (128, 2, 2), (256, 2, 2), (512, 1, 2))
# Per stage: channels of the 1x1 and of the 3x3 convolution of each unit; and of the convolution
# that halves the size of the maps before it.
_INCEPTION_STAGES = (
    (0, ((32, 32), (32, 48))),
    (80, ((112, 48), (96, 64), (80, 80), (48, 96))),
    (96, ((176, 160), (176, 160))),
)
_INCEPTION_STEM = 96


def inception_bn_28_small(x: Symbol) -> Symbol:
    """Return the features [batch, 336] of units of a 1x1 and a 3x3 convolution beside each other.

    MXNet's small form, for images of 28 or 32 pixels, of Ioffe and Szegedy, Batch Normalization,
    arXiv:1502.03167; the network of Grouping-SGD for CIFAR. As there, convolutions have biases and
    the gammas of BatchNorm stay at one.
    """
    x = _inception_convolution(x, "conv1", _INCEPTION_STEM, kernel=3)
    # Stages are counted from 3, as in the paper.
    for stage, (halved, stage_units) in enumerate(_INCEPTION_STAGES, start=3):
        if halved:
            x = _halved(x, f"stage{stage}_half", halved)
        for number, (single, wide) in enumerate(stage_units, start=1):
            name = f"stage{stage}_unit{number}"
            branches = (
                _inception_convolution(x, f"{name}_1x1", single, kernel=1),
                _inception_convolution(x, f"{name}_3x3", wide, kernel=3),
            )
            x = mx.sym.concat(*branches, dim=1, name=f"{name}_concat")
    return global_average(x)


def _inception_convolution(x: Symbol, name: str, channels: int, **sizes: int) -> Symbol:
    """Return a convolution with bias, BatchNorm whose gamma stays at one, and ReLU."""
    x = biased_convolution(x, name, channels, **sizes)
    x = batch_norm(x, f"{name}_bn", epsilon=DEFAULT_EPSILON, fixed_gamma=True)
    return relu(x, f"{name}_relu")


def _halved(x: Symbol, name: str, channels: int) -> Symbol:
    """Return the maps at half of their size: ``channels`` of a convolution, and their maxima."""
    convolved = _inception_convolution(x, f"{name}_3x3", channels, kernel=3, stride=2)
    largest = mx.sym.Pooling(
        x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max", name=f"{name}_pool"
    )
    return mx.sym.concat(convolved, largest, dim=1, name=f"{name}_concat")


def densenet(x: Symbol, *, counts: Sequence[int], growth: int = 32) -> Symbol:
    """Return the features [batch, n] of ``counts`` units per stage that append ``growth`` maps.

    Huang et al., Densely Connected Convolutional Networks, arXiv:1608.06993, with bottlenecks and
    compression.
    """
    channels = 2 * growth
    x = convolution(x, "conv0", channels, kernel=3)
    for stage, count in enumerate(counts):
        if stage:
            # Half of the maps, at half of their size.
            channels //= 2
            name = f"transition{stage}"
            x = convolution(norm_relu(x, f"{name}_bn"), f"{name}_conv", channels, kernel=1)
            x = pool(x, f"{name}_pool", "avg")
        for number in range(1, count + 1):
            name = f"stage{stage + 1}_unit{number}"
            new = convolution(norm_relu(x, f"{name}_bn1"), f"{name}_conv1", 4 * growth, kernel=1)
            new = convolution(norm_relu(new, f"{name}_bn2"), f"{name}_conv2", growth, kernel=3)
            x = mx.sym.concat(new, x, dim=1, name=f"{name}_concat")
            channels += growth
    return global_average(norm_relu(x, "bn"))


def dpn(x: Symbol, *, counts: Sequence[int]) -> Symbol:
    """Return the features [batch, 2048 + (units + 1) * 128] of ``counts`` units per stage.

    A unit adds residual maps and appends others.

    Chen et al., Dual Path Networks, arXiv:1707.01629.
    """
    in_channels = 64
    x = conv_norm_relu(x, "conv0", in_channels, kernel=3)
    stages = zip(counts, _DPN_STAGES)
    for stage, (count, (width, residual, appended)) in enumerate(stages, start=1):
        stride = 1 if stage == 1 else 2
        for number in range(1, count + 1):
            name = f"stage{stage}_unit{number}"
            unit = Unit(name, in_channels, residual + appended, stride)
            new = bottleneck(x, unit, width=width, groups=32)
            if number == 1:
                x = conv_norm(x, f"{name}_shortcut", unit.channels, kernel=1, stride=stride)
                in_channels, stride = unit.channels, 1
            x = relu(_join(x, new, residual, name), f"{name}_relu")
            in_channels += appended
    return global_average(x)


def _join(x: Symbol, new: Symbol, residual: int, name: str) -> Symbol:
    """Return the sum of the first ``residual`` maps, then all other maps of both."""
    parts = [
        mx.sym.slice_axis(maps, axis=1, begin=begin, end=end, name=f"{name}_{part}_{kind}")
        for kind, maps in (("old", x), ("new", new))
        for part, begin, end in (("residual", 0, residual), ("appended", residual, None))
    ]
    old_residual, old_appended, new_residual, new_appended = parts
    return mx.sym.concat(
        old_residual + new_residual, old_appended, new_appended, dim=1, name=f"{name}_concat"
    )


def dla(x: Symbol, *, has_binary_trees: bool = False) -> Symbol:
    """Return the features [batch, 512] of trees whose leaves are residual units.

    Yu et al., Deep Layer Aggregation, arXiv:1707.06484. The root of a tree concatenates all of its
    subtrees, that of a binary one the last two.
    """
    for number, in_channels in enumerate((16, 16, 32)):
        x = conv_norm_relu(x, f"conv{number}", in_channels, kernel=3)
    tree = _binary_tree if has_binary_trees else _tree
    for stage, (channels, depth, stride) in enumerate(_DLA_STAGES, start=1):
        x = tree(x, Unit(f"stage{stage}", in_channels, channels, stride), depth)
        in_channels = channels
    return global_average(x)


def _tree(x: Symbol, unit: Unit, depth: int) -> Symbol:
    """Return the maps of a tree: each subtree reads the one before, the root reads all of them."""
    children = []
    if depth > 1:
        children.append(basic(x, unit.child("before")))
    for level in range(depth - 1, 0, -1):
        x = _tree(x, unit.child(f"level{level}"), level)
        children.append(x)
        unit = unit.same_size()
    left = basic(x, unit.child("left"))
    right = basic(left, unit.same_size().child("right"))
    return _root([*children, left, right], unit)


def _binary_tree(x: Symbol, unit: Unit, depth: int) -> Symbol:
    if depth == 1:
        return _tree(x, unit, 1)
    left = _binary_tree(x, unit.child("left"), depth - 1)
    right = _binary_tree(left, unit.same_size().child("right"), depth - 1)
    return _root([left, right], unit)


def _root(children: Sequence[Symbol], unit: Unit) -> Symbol:
    x = mx.sym.concat(*children, dim=1, name=f"{unit.name}_concat")
    return conv_norm_relu(x, f"{unit.name}_root", unit.channels, kernel=1)
