"""The layers that the networks share, with the names of the InsightFace checkpoints.

Tools that read these networks find tensors by name (``conv0_weight``, ``stage1_unit1_bn1_gamma``,
``fc1_output``), so name, padding and BatchNorm settings of a layer are set here only. The input is
normalized inside the graph: a network takes the pixels as they are, and no tool can normalize them
twice or not at all.
"""

from __future__ import annotations

from typing import Any

from runtime.mxnet import mx

Symbol = Any
"""An ``mx.sym.Symbol``; MXNet has no types."""

BATCH_NORM_EPSILON = 2e-5
BATCH_NORM_MOMENTUM = 0.9
PIXEL_MEAN = 127.5
PIXEL_SCALE = 0.0078125


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
