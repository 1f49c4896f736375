"""The number format bfloat16 in NumPy and Numba, which lack it: the upper half of a float32.

MXNet's arrays of this type appear as ``uint16`` (see ``runtime.ndarray.memory``). Each kernel on
what the products of ``--head-dtype bfloat16`` read and write serves both types: it reads through
``widened`` and writes through ``narrowed``, which do nothing where the array is float32, so that
sums, norms and updates are float32 in either case.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.kernels.compiled import overload, types


def widened(value: Any) -> Any:
    """In a kernel: an entry of an array as float32."""
    raise NotImplementedError("compiled only")


def narrowed(value: Any, array: Any) -> Any:
    """In a kernel: a float32 as an entry of ``array``, rounded to the nearest, ties to even."""
    raise NotImplementedError("compiled only")


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


def to_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """The values of an array of float32 or bfloat16."""
    if values.dtype != np.uint16:
        return values
    return (values.astype(np.uint32) << 16).view(np.float32)


def from_float32(values: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values as ``dtype``: uint16 holds bfloat16, rounded to the nearest, ties to even."""
    if dtype != np.uint16:
        return values
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
