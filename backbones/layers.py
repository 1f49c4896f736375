"""The layers that the networks share, and the backbones, with the names of InsightFace's tensors.

A backbone is a body, from normalized pixels to feature maps, and the layers from these to the
embedding: the original's ``net_output``. Names, and where a BatchNorm or the dropout stands, are
those of InsightFace's MXNet networks (``get_fc1`` of ``symbol_utils.py``), so that each program
reads the other's checkpoints. The first letters of outputs are those of ArcFace (arXiv:1801.07698,
section 3.1), which compares A to E. With float16 the last layers compute in float32: the BatchNorm
of the embedding, and all of GNAP, which adds up squares.

Tools that read these networks find tensors by name (``conv0_weight``, ``stage1_unit1_bn1_gamma``,
``fc1_output``), so name, padding and BatchNorm settings of a layer are set here only. The input is
normalized inside the graph: a network takes the pixels as they are, and no tool can normalize them
twice or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runtime.mxnet import mx

Symbol = Any
"""An ``mx.sym.Symbol``; MXNet has no types."""

BATCH_NORM_EPSILON = 2e-5
DEFAULT_EPSILON = 1e-3
"""MXNet's, with which MobileFaceNet's published weights were trained, and GDC."""
BATCH_NORM_MOMENTUM = 0.9
PIXEL_MEAN = 127.5
PIXEL_SCALE = 0.0078125
DROPOUT = 0.4
Maps = tuple[int, int]
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


def pixels(dtype: str) -> Symbol:
    """Return the input ``data`` (RGB, 0-255, float32) as ``(x - 127.5) / 128`` in ``dtype``.

    The nodes carry the names of the published networks: the ``insightface`` package looks for a
    ``_minus`` and a ``_mul`` among the first nodes to see that it must not normalize itself.
    """
    centered = mx.sym.var("data") - PIXEL_MEAN
    scaled = centered * PIXEL_SCALE
    return scaled if dtype == "float32" else mx.sym.Cast(scaled, dtype=dtype, name="data_cast")


def convolution(
    x: Symbol, name: str, channels: int, *, kernel: int, stride: int = 1, groups: int = 1
) -> Symbol:
    """Return a convolution without bias; the padding keeps the size at stride 1."""
    pad = kernel // 2
    return mx.sym.Convolution(
        x,
        num_filter=channels,
        kernel=(kernel, kernel),
        stride=(stride, stride),
        pad=(pad, pad),
        num_group=groups,
        no_bias=True,
        name=name,
    )


def batch_norm(
    x: Symbol, name: str, *, epsilon: float = BATCH_NORM_EPSILON, fixed_gamma: bool = False
) -> Symbol:
    """Return BatchNorm over the channel axis; a fixed gamma stays at one."""
    return mx.sym.BatchNorm(
        x, fix_gamma=fixed_gamma, eps=epsilon, momentum=BATCH_NORM_MOMENTUM, name=name
    )


def relu(x: Symbol, name: str) -> Symbol:
    """Return the positive part of ``x``."""
    return mx.sym.Activation(x, act_type="relu", name=name)


def prelu(x: Symbol, name: str) -> Symbol:
    """Return PReLU with one slope per channel, ``<name>_gamma`` (He et al., arXiv:1502.01852)."""
    return mx.sym.LeakyReLU(x, act_type="prelu", name=name)


def embedding(x: Symbol, output: str, maps: Maps, *, size: int, dtype: str) -> Symbol:
    """Return the embedding ``fc1`` [b, size], float32, of feature maps ``maps`` in ``dtype``.

    Args:
        x: the end of a body.
        output: one of ``options.OUTPUTS``.
        maps: channels and side of ``x`` for images of 112x112 pixels: the kernel of GDC.
        size: of the embedding.
        dtype: what the body computes in.
    """
    if output == "F":
        # The linear layer is the last: it has the name, and a float32 result.
        return _linear(_to_float32(_normed(x, dropout=True), dtype), size, "fc1")
    if output == "GNAP":
        x = _norm_aware(_to_float32(x, dtype), maps, size)
    else:
        x = _to_float32(_linear(_BEFORE_LINEAR[output](x, maps), size, "pre_fc1"), dtype)
    return batch_norm(x, "fc1", fixed_gamma=True)


def _linear(x: Symbol, size: int, name: str) -> Symbol:
    return mx.sym.FullyConnected(x, num_hidden=size, name=name)


def _to_float32(x: Symbol, dtype: str) -> Symbol:
    return x if dtype == "float32" else mx.sym.Cast(x, dtype="float32", name="pre_fc1_cast")


def _normed(x: Symbol, *, dropout: bool = False) -> Symbol:
    x = batch_norm(x, "bn1")
    return mx.sym.Dropout(x, p=DROPOUT) if dropout else x


def _pooled(x: Symbol) -> Symbol:
    x = prelu(batch_norm(x, "bn1"), "relu1")
    pooled = mx.sym.Pooling(x, kernel=(7, 7), global_pool=True, pool_type="avg", name="pool1")
    return mx.sym.Flatten(pooled)


def _depthwise(x: Symbol, maps: Maps) -> Symbol:
    """Weigh every position of a channel (Chen et al., arXiv:1804.07573)."""
    channels, side = maps
    x = mx.sym.Convolution(
        x,
        num_filter=channels,
        kernel=(side, side),
        stride=(1, 1),
        pad=(0, 0),
        num_group=channels,
        no_bias=True,
        name="conv_6dw7_7_conv2d",
    )
    return batch_norm(x, "conv_6dw7_7_batchnorm", epsilon=DEFAULT_EPSILON)


def _norm_aware(x: Symbol, maps: Maps, size: int) -> Symbol:
    """Return the norm-aware average of float32 maps (MobileFaceNet++ of InsightFace).

    All positions get the same norm before they are averaged: the mean over the positions of all
    images of the batch. So an embedding depends on the other images of its batch, as the original's
    does.
    """
    channels, _ = maps
    if size > channels:
        x = prelu(batch_norm(convolution(x, "convx", size, kernel=1), "convx_bn"), "convx_relu")
        channels = size
    x = batch_norm(x, "bn6f", fixed_gamma=True)
    norms = mx.sym.sqrt(mx.sym.sum(x * x, axis=1, keepdims=True))
    weights = mx.sym.broadcast_div(mx.sym.mean(norms), norms)
    x = x * mx.sym.tile(weights, reps=(1, channels, 1, 1))
    x = mx.sym.Pooling(x, kernel=(7, 7), global_pool=True, pool_type="avg")
    if size == channels:
        return mx.sym.Flatten(x)
    return _linear(batch_norm(x, "bn6w", fixed_gamma=True), size, "pre_fc1")


_BEFORE_LINEAR: Mapping[str, Callable[[Symbol, Maps], Symbol]] = {
    "E": lambda x, maps: _normed(x, dropout=True),
    "FC": lambda x, maps: _normed(x),
    "J": lambda x, maps: x,
    "GAP": lambda x, maps: _pooled(x),
    "GDC": _depthwise,
}


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
