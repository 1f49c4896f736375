"""The form of a graph for a CPU, by the number format in which it computes."""

from __future__ import annotations

import logging

from backbones.graph.nodes import Shape
from backbones.graph.onednn import blocked, narrow
from backbones.layers import Symbol
from runtime.environment import bfloat16_unit, channel_block

_log = logging.getLogger(__name__)

_BLOCK_OF_AVX512 = 16


def fill(symbol: Symbol, batch_shape: Shape, dtype: str, *, is_folded: bool = False) -> Symbol:
    """Return a float32 graph with channels that fill what oneDNN computes at once.

    It has the same parameters and outputs, all float32.

    Args:
        symbol: a graph with the input ``data``.
        batch_shape: of the input; the number of images does not matter.
        dtype: float32, or bfloat16: of feature maps and products.
        is_folded: True without a backward pass. Kernels are padded once then, and where padding
            saves nothing it costs nothing either.
    """
    block = channel_block()
    if dtype == "bfloat16":
        unit = bfloat16_unit()
        assert unit, "usable_dtype has been asked"
        return narrow.rewrite(symbol, batch_shape, block, unit)
    return (blocked.fill if is_folded else blocked.rewrite)(symbol, batch_shape, block)


def has_slow_short_rows(dtype: str) -> bool:
    """True if oneDNN needs help with short rows (``joining.divide``): in float32, with AVX-512."""
    return dtype == "float32" and channel_block() == _BLOCK_OF_AVX512


def dtype_of_graph(dtype: str) -> str:
    """Return the type in which the graph is built that is rewritten to compute in ``dtype``."""
    return "float32" if dtype == "bfloat16" else dtype


def usable_dtype(dtype: str) -> str:
    """Return ``dtype``, or float32 on a CPU where bfloat16 would be slower."""
    if dtype == "bfloat16" and bfloat16_unit() is None:
        _log.warning(
            "--dtype bfloat16: this processor has neither AVX512_BF16 nor AMX tiles that oneDNN "
            "may use, without which bfloat16 is slower than float32; the network computes in "
            "float32"
        )
        return "float32"
    return dtype
