"""The bodies of the backbones: from normalized pixels to feature maps.

All tensor names are those of the InsightFace checkpoints for MXNet, so each reads the weights of
the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from backbones.layers import DEFAULT_EPSILON, Symbol, batch_norm, convolution, prelu, relu
from runtime.mxnet import mx

_IRESNET_CHANNELS = (64, 128, 256, 512)
# Channels of a map over those of the layer between the two of a squeeze-and-excitation.
_SE_REDUCTION = 16
# Per stage: name of the unit that halves the maps and channels inside it; the same of the residual
# units after it, and how many they are; channels of their outputs.
_MOBILEFACENET_STAGES = (
    ("dconv_23", 128, "res_3", 128, 4, 64),
    ("dconv_34", 256, "res_4", 256, 6, 128),
    ("dconv_45", 512, "res_5", 256, 2, 128),
)
_STEM_CHANNELS, _FINAL_CHANNELS = 64, 512

_TINY_CHANNELS = (32, 64, 128, 128)


def iresnet(x: Symbol, *, units: Sequence[int], se: bool = False) -> Symbol:
    """Return the feature maps [b, 512, h / 16, w / 16] of normalized pixels [b, 3, h, w].

    The residual networks of ArcFace: the publications call them ResNet-50, ResNet-100 and so on,
    but the unit differs from that of image classification: BatchNorm at both ends, PReLU inside,
    the stride in the second convolution and no activation after the sum (Han et al.,
    arXiv:1610.02915; Deng et al., arXiv:1801.07698).

    Each of the four stages has a number of residual ``units``, with ``se`` of the kind that weighs
    its channels.
    """
    x = convolution(x, "conv0", _IRESNET_CHANNELS[0], kernel=3)
    x = prelu(batch_norm(x, "bn0"), "relu0")
    for stage, (count, channels) in enumerate(zip(units, _IRESNET_CHANNELS), start=1):
        x = _iresnet_unit(x, f"stage{stage}_unit1", channels, stride=2, se=se)
        for unit in range(2, count + 1):
            x = _iresnet_unit(x, f"stage{stage}_unit{unit}", channels, stride=1, se=se)
    return x


def _iresnet_unit(x: Symbol, name: str, channels: int, *, stride: int, se: bool = False) -> Symbol:
    """Return ``x`` plus its residual; a unit with a stride projects the shortcut."""
    residual = convolution(batch_norm(x, f"{name}_bn1"), f"{name}_conv1", channels, kernel=3)
    residual = prelu(batch_norm(residual, f"{name}_bn2"), f"{name}_relu1")
    residual = convolution(residual, f"{name}_conv2", channels, kernel=3, stride=stride)
    residual = batch_norm(residual, f"{name}_bn3")
    if se:
        residual = _squeeze_and_excitation(residual, f"{name}_se", channels)
    if stride > 1:
        x = convolution(x, f"{name}_conv1sc", channels, kernel=1, stride=stride)
        x = batch_norm(x, f"{name}_sc")
    return residual + x


def _squeeze_and_excitation(x: Symbol, name: str, channels: int) -> Symbol:
    """Return ``x`` with every channel times a weight that follows from the means of all channels.

    Two layers with biases between mean and sigmoid (Hu et al., arXiv:1709.01507).
    """
    means = mx.sym.Pooling(
        x, kernel=(7, 7), global_pool=True, pool_type="avg", name=f"{name}_pool1"
    )
    one = {"kernel": (1, 1), "stride": (1, 1), "pad": (0, 0)}
    inner = mx.sym.Convolution(
        means, num_filter=channels // _SE_REDUCTION, **one, name=f"{name}_conv1"
    )
    inner = prelu(inner, f"{name}_relu1")
    weights = mx.sym.Convolution(inner, num_filter=channels, **one, name=f"{name}_conv2")
    weights = mx.sym.Activation(weights, act_type="sigmoid", name=f"{name}_sigmoid")
    return mx.sym.broadcast_mul(x, weights)


def mobilefacenet(x: Symbol) -> Symbol:
    """Return the feature maps [b, 512, h / 16, w / 16] of normalized pixels [b, 3, h, w].

    About one million parameters, for phones and for training without a GPU: inverted residual units
    as in MobileNetV2, but with early downsampling, PReLU, and the output "GDC": a depthwise
    convolution over the whole last map in place of average pooling, so that the network can weigh
    the center of a face more than its corners (Chen et al., arXiv:1804.07573, table 1). Tensor
    names follow the InsightFace checkpoint "y1", whose weights fit this graph.
    """
    x = _conv_unit(x, "conv_1", _STEM_CHANNELS, kernel=3, stride=2)
    x = _conv_unit(x, "conv_2_dw", _STEM_CHANNELS, kernel=3, groups=_STEM_CHANNELS)
    for down, wide, residual, expansion, units, channels in _MOBILEFACENET_STAGES:
        x = _bottleneck(x, down, wide, channels, stride=2)
        for unit in range(units):
            x = _bottleneck(x, f"{residual}_block{unit}", expansion, channels, stride=1) + x
    return _conv_unit(x, "conv_6sep", _FINAL_CHANNELS, kernel=1)


def _bottleneck(x: Symbol, name: str, expansion: int, channels: int, *, stride: int) -> Symbol:
    """Return expansion, depthwise convolution and linear projection of ``x``."""
    x = _conv_unit(x, f"{name}_conv_sep", expansion, kernel=1)
    x = _conv_unit(x, f"{name}_conv_dw", expansion, kernel=3, stride=stride, groups=expansion)
    x = convolution(x, f"{name}_conv_proj_conv2d", channels, kernel=1)
    return batch_norm(x, f"{name}_conv_proj_batchnorm", epsilon=DEFAULT_EPSILON)


def _conv_unit(
    x: Symbol, name: str, channels: int, *, kernel: int, stride: int = 1, groups: int = 1
) -> Symbol:
    """Return convolution, BatchNorm and PReLU."""
    x = convolution(x, f"{name}_conv2d", channels, kernel=kernel, stride=stride, groups=groups)
    return prelu(batch_norm(x, f"{name}_batchnorm", epsilon=DEFAULT_EPSILON), f"{name}_relu")


def tiny(x: Symbol) -> Symbol:
    """Return the feature maps [b, 128, h / 32, w / 32] (rounded up) of pixels [b, 3, h, w].

    A small residual network for examples and tests: it trains in minutes on two cores, and the rest
    of a run is the same as with a large network, so any machine can test that the whole program
    learns. It is made for a CPU: the first convolution reduces the maps to a quarter of the image's
    height and width; a residual is a single convolution; and the activation is ReLU, since the
    backward pass of PReLU takes longer than that of a convolution there.
    """
    x = convolution(x, "conv0", _TINY_CHANNELS[0], kernel=5, stride=4)
    x = relu(batch_norm(x, "bn0"), "relu0")
    x = _tiny_unit(x, "stage1_unit1", _TINY_CHANNELS[0])
    for stage, channels in enumerate(_TINY_CHANNELS[1:], start=2):
        x = convolution(x, f"stage{stage}_conv0", channels, kernel=3, stride=2)
        x = relu(batch_norm(x, f"stage{stage}_bn0"), f"stage{stage}_relu0")
        x = _tiny_unit(x, f"stage{stage}_unit1", channels)
    return x


def _tiny_unit(x: Symbol, name: str, channels: int) -> Symbol:
    """Return ``relu(x + residual)`` (He et al., arXiv:1512.03385)."""
    residual = convolution(x, f"{name}_conv1", channels, kernel=3)
    return relu(x + batch_norm(residual, f"{name}_bn1"), f"{name}_relu1")
