"""The layers that the networks share, with the names of the InsightFace checkpoints.

They are those inside of a body, and those from the last feature maps to the embedding: the
original's ``net_output``. Names, and where a BatchNorm or the dropout stands, are those of
InsightFace's MXNet networks (``get_fc1`` of ``symbol_utils.py``), so that each program reads the
other's checkpoints. The first letters of outputs are those of ArcFace (arXiv:1801.07698, section
3.1), which compares A to E. With float16 the last layers compute in float32: the BatchNorm of the
embedding, and all of GNAP, which adds up squares.

Tools that read these networks find tensors by name (``conv0_weight``, ``stage1_unit1_bn1_gamma``,
``fc1_output``), so name, padding and BatchNorm settings of a layer are set here only. The input is
normalized inside the graph: a network takes the pixels as they are, and no tool can normalize them
twice or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
