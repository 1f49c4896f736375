"""The form of a graph for a CPU, by the number format in which it computes."""

from __future__ import annotations

from backbones.graph.nodes import Shape
from backbones.graph.onednn import blocked, narrow
from backbones.layers import Symbol
from runtime import environment
from runtime.environment import channel_block

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
        unit = environment.bfloat16_unit()
        assert unit, "usable_dtype() has been asked"
        return narrow.rewrite(symbol, batch_shape, block, unit)
    return (blocked.fill if is_folded else blocked.rewrite)(symbol, batch_shape, block)


def has_slow_short_rows(dtype: str) -> bool:
    """True if oneDNN needs help with short rows (``joining.divide``): in float32, with AVX-512."""
    return dtype == "float32" and channel_block() == _BLOCK_OF_AVX512
