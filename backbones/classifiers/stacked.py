"""Classifiers of stacked layers, and of stacked residual units.

The former are LeNet, for MNIST, VGG and MobileNet; the latter ResNet, PreActResNet, SENet, ResNeXt,
RegNet and MobileNetV2, whose unit adds its residual to its input, or to a projection of its input
where size or channels change. All but LeNet are the variants for small images: the first
convolution keeps the image size, and no pooling follows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from backbones.classifiers.blocks import (
    Unit,
    add_relu,
    basic,
    biased_convolution,
    bottleneck,
    conv_norm_relu,
    global_average,
    norm_relu,
    pool,
    shortcut,
    squeeze_excite,
    units,
)
from backbones.layers import Symbol, batch_norm, convolution, relu
from runtime.mxnet import mx

_VGG_CHANNELS = (64, 128, 256, 512, 512)
# Per unit: channels and stride.
_MOBILENET_UNITS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)
_STEM = 64
_WIDTHS = (64, 128, 256, 512)
_STRIDES = (1, 2, 2, 2)
_CIFAR_STEM = 16


def lenet(x: Symbol) -> Symbol:
    """Return the features [batch, 512] of the network of MXNet's and Horovod's MNIST examples.

    After LeNet-5 (LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998),
    with ReLU and max pooling.
    """
    for number, channels in enumerate((20, 50), start=1):
        x = mx.sym.Convolution(x, num_filter=channels, kernel=(5, 5), name=f"conv{number}")
        x = pool(relu(x, f"relu{number}"), f"pool{number}", "max")
    return relu(mx.sym.FullyConnected(x, num_hidden=512, name="fc1"), "relu3")


def vgg(x: Symbol, *, counts: Sequence[int]) -> Symbol:
    """Return the features [batch, 512] of ``counts`` 3x3 convolutions per stage, with BatchNorm.

    Simonyan and Zisserman, Very Deep Convolutional Networks, arXiv:1409.1556, configurations A, B,
    D and E.
    """
    for stage, (channels, layers) in enumerate(zip(_VGG_CHANNELS, counts), start=1):
        for layer in range(1, layers + 1):
            name = f"conv{stage}_{layer}"
            x = norm_relu(biased_convolution(x, name, channels, kernel=3), f"{name}_bn")
        x = pool(x, f"pool{stage}", "max")
    return global_average(x)


def mobilenet(x: Symbol) -> Symbol:
    """Return the features [batch, 1024] of depthwise 3x3 and 1x1 convolutions in turn.

    Howard et al., MobileNets, arXiv:1704.04861; the strides are those of the CIFAR-10 tutorial.
    """
    width = 32
    x = conv_norm_relu(x, "conv0", width, kernel=3)
    for number, (channels, stride) in enumerate(_MOBILENET_UNITS, start=1):
        name = f"unit{number}"
        x = conv_norm_relu(x, f"{name}_conv1", width, kernel=3, stride=stride, groups=width)
        x = conv_norm_relu(x, f"{name}_conv2", channels, kernel=1)
        width = channels
    return global_average(x)


def resnet(x: Symbol, *, counts: Sequence[int], has_bottlenecks: bool = False) -> Symbol:
    """Return the features [batch, 512 or 2048] of ``counts`` units per stage.

    He et al., Deep Residual Learning for Image Recognition, arXiv:1512.03385. A unit has two
    convolutions, a bottleneck three.
    """
    x = conv_norm_relu(x, "conv0", _STEM, kernel=3)
    widths = [4 * width for width in _WIDTHS] if has_bottlenecks else _WIDTHS
    for unit in units(counts, _STRIDES, widths, stem=_STEM):
        if has_bottlenecks:
            x = add_relu(x, bottleneck(x, unit, width=unit.channels // 4), unit)
        else:
            x = basic(x, unit)
    return global_average(x)


def preact_resnet(
    x: Symbol, *, counts: Sequence[int], has_bottlenecks: bool = False, squeezes: bool = False
) -> Symbol:
    """Return the features [batch, 512 or 2048] of units that normalize before each convolution.

    He et al., Identity Mappings in Deep Residual Networks, arXiv:1603.05027. Like the CIFAR-10
    tutorial that it belongs to, without the BatchNorm of that paper after the last unit.
    ``squeezes`` gives the residuals squeeze-and-excitation, and the stem BatchNorm and ReLU: SENet.
    """
    x = (conv_norm_relu if squeezes else convolution)(x, "conv0", _STEM, kernel=3)
    widths = [4 * width for width in _WIDTHS] if has_bottlenecks else _WIDTHS
    for unit in units(counts, _STRIDES, widths, stem=_STEM):
        name, channels = unit.name, unit.channels
        activated = norm_relu(x, f"{name}_bn1")
        if unit.is_projected:
            x = convolution(activated, f"{name}_shortcut", channels, kernel=1, stride=unit.stride)
        residual = _residual(activated, unit, has_bottlenecks)
        if squeezes:
            residual = squeeze_excite(residual, f"{name}_se", channels, channels // 16)
        x = x + residual
    return global_average(x)


def cifar_resnet(
    x: Symbol, *, count: int, widths: Sequence[int], has_bottlenecks: bool = False
) -> Symbol:
    """Return the features [batch, widths[2]] of three stages of ``count`` pre-activated units.

    The networks of He et al., arXiv:1603.05027, section 4: 6 * count + 2 layers, with bottlenecks
    9 * count + 2. Names and parameters are those of Grouping-SGD's networks: as there, the pixels
    pass a BatchNorm first, and the first unit of every stage projects its input.
    """
    x = batch_norm(x, "bn_data", fixed_gamma=True)
    x = convolution(x, "conv0", _CIFAR_STEM, kernel=3)
    for unit in units((count,) * 3, _STRIDES[:3], widths, stem=_CIFAR_STEM):
        activated = norm_relu(x, f"{unit.name}_bn1")
        if unit.name.endswith("_unit1"):
            x = convolution(
                activated, f"{unit.name}_sc", unit.channels, kernel=1, stride=unit.stride
            )
        x = x + _residual(activated, unit, has_bottlenecks)
    return global_average(norm_relu(x, "bn1"))


def _residual(x: Symbol, unit: Unit, is_bottleneck: bool) -> Symbol:
    """Return the residual of activated maps: convolutions with BatchNorm and ReLU between them."""
    name, channels, stride = unit.name, unit.channels, unit.stride
    if is_bottleneck:
        x = norm_relu(convolution(x, f"{name}_conv1", channels // 4, kernel=1), f"{name}_bn2")
        x = convolution(x, f"{name}_conv2", channels // 4, kernel=3, stride=stride)
        return convolution(norm_relu(x, f"{name}_bn3"), f"{name}_conv3", channels, kernel=1)
    x = convolution(x, f"{name}_conv1", channels, kernel=3, stride=stride)
    return convolution(norm_relu(x, f"{name}_bn2"), f"{name}_conv2", channels, kernel=3)


def resnext29(x: Symbol, *, groups: int, group_width: int) -> Symbol:
    """Return the features [batch, 8 * groups * group_width] of bottlenecks in groups.

    Xie et al., Aggregated Residual Transformations, arXiv:1611.05431. A 3x3 convolution has
    ``groups`` (the paper's cardinality), of ``group_width`` channels in the first stage.
    """
    x = conv_norm_relu(x, "conv0", _STEM, kernel=1)
    channels = [2 * groups * group_width << stage for stage in range(3)]
    for unit in units((3, 3, 3), (1, 2, 2), channels, stem=_STEM):
        x = add_relu(x, bottleneck(x, unit, width=unit.channels // 2, groups=groups), unit)
    return global_average(x)


def regnet(
    x: Symbol,
    *,
    counts: Sequence[int],
    widths: Sequence[int],
    group_width: int,
    squeeze_ratio: float = 0.0,
) -> Symbol:
    """Return the features [batch, widths[3]] of grouped bottlenecks without expansion.

    Radosavovic et al., Designing Network Design Spaces, arXiv:2003.13678. ``squeeze_ratio`` is the
    hidden channels of squeeze-and-excitation over a unit's input channels; 0 leaves it out.
    """
    x = conv_norm_relu(x, "conv0", _STEM, kernel=3)
    for unit in units(counts, (1, 1, 2, 2), widths, stem=_STEM):
        groups, squeezed = unit.channels // group_width, round(unit.in_channels * squeeze_ratio)
        residual = bottleneck(x, unit, width=unit.channels, groups=groups, squeezed=squeezed)
        x = add_relu(x, residual, unit)
    return global_average(x)


def mobilenet_v2(x: Symbol) -> Symbol:
    """Return the features [batch, 1280] of inverted residuals: wide and depthwise inside a unit.

    Sandler et al., Inverted Residuals and Linear Bottlenecks, arXiv:1801.04381. The strides are
    those of the CIFAR-10 tutorial, as is the projection around units that change the channels only.
    """
    counts, strides = (1, 2, 3, 4, 3, 3, 1), (1, 1, 2, 2, 1, 2, 1)
    x = conv_norm_relu(x, "conv0", 32, kernel=3)
    for number, unit in enumerate(units(counts, strides, (16, 24, 32, 64, 96, 160, 320), stem=32)):
        # The first unit does not expand.
        width = 6 * unit.in_channels if number else unit.in_channels
        residual = bottleneck(x, unit, width=width, groups=width)
        x = shortcut(x, unit) + residual if unit.stride == 1 else residual
    return global_average(conv_norm_relu(x, "conv1", 1280, kernel=1))
