"""The layers from the last feature maps to the embedding: the original's ``net_output``.

Names, and where a BatchNorm or the dropout stands, are those of InsightFace's MXNet networks
(``get_fc1`` of ``symbol_utils.py``), so that each program reads the other's checkpoints. The first
letters are those of ArcFace (arXiv:1801.07698, section 3.1), which compares A to E.

With float16 the last layers compute in float32: the BatchNorm of the embedding, and all of GNAP,
which adds up squares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from backbones.layers import Symbol, batch_norm, convolution, prelu
from backbones.mobilefacenet import EPSILON
from runtime.mxnet import mx

DROPOUT = 0.4
Maps = tuple[int, int]


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
    return batch_norm(x, "conv_6dw7_7_batchnorm", epsilon=EPSILON)


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
