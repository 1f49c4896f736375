"""The number format bfloat16 in NumPy and Numba, which lack it: the upper half of a float32.

MXNet's arrays of this type appear as ``uint16`` (see ``runtime.ndarray.memory``). Each kernel on
what the products of ``--head-dtype bfloat16`` read and write serves both types: it reads through
``widened`` and writes through ``narrowed``, which do nothing where the array is float32, so that
sums, norms and updates are float32 in either case.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from runtime.kernels import overload, types


def widened(value: Any) -> Any:
    """Return an array of float32 or bfloat16 as float32; in a kernel, one entry."""
    if value.dtype != np.uint16:
        return value
    return (value.astype(np.uint32) << 16).view(np.float32)


def narrowed(value: Any, array: Any) -> Any:
    """Return a float32 array, in a kernel one entry, in the type of ``array``.

    Numbers are rounded to the nearest, ties to even.
    """
    if array.dtype != np.uint16:
        return value
    bits = value.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@overload(widened, inline="always")
def _widened(value):  # type: ignore[no-untyped-def]
    if value == types.uint16:
        return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


@overload(narrowed, inline="always")
def _narrowed(value, array):  # type: ignore[no-untyped-def]
    if array.dtype != types.uint16:
        return lambda value, array: value

    def to_bfloat16(value, array):  # type: ignore[no-untyped-def]
        bits = np.float32(value).view(np.uint32)
        odd = np.uint32((bits >> np.uint32(16)) & np.uint32(1))
        return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))

    return to_bfloat16
