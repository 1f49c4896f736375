"""The number format bfloat16 in NumPy and Numba, which lack it: the upper half of a float32.

MXNet's arrays of this type appear as ``uint16`` (see ``runtime.ndarray.memory``). Each row kernel
serves both types: it reads through ``widened`` and writes through ``narrowed`` or ``rounded``,
which do nothing where the array is float32, so that sums, norms and updates are float32 in either
case.

What is kept from update to update is rounded up or down at random, by its distance to both
(stochastic rounding: Gupta et al., Deep Learning with Limited Numerical Precision, ICML 2015,
equation 1). Most updates are smaller than half of the last of eight bits: rounded to the nearest,
they would all be lost; at random they are kept in the mean. The random numbers are a hash of what
they are for, so that a run that continues draws what it would have drawn.

Rounding errors of a center add up from update to update, those of a momentum fade. So a center has
20 bits instead of 16: its upper 16 are what a step reads, and the other four are the lower four of
its momentum, which has twelve left, three of them behind the point. Such a number of 20 bits is
"long" here, and its lower four bits are its "tail".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from partial_fc.row_memory import zeros
from runtime.kernels.compiled import inlined, overload, types


def widened(value: Any) -> Any:
    """In a kernel: an entry of an array as float32."""
    raise NotImplementedError("compiled only")


def narrowed(value: Any, array: Any) -> Any:
    """In a kernel: a float32 as an entry of ``array``, rounded to the nearest, ties to even."""
    raise NotImplementedError("compiled only")


def rounded(value: Any, array: Any, random: Any) -> Any:
    """In a kernel: a float32 as an entry of ``array``, rounded up or down.

    ``random``, uint32, decides by its lower 16 bits.
    """
    raise NotImplementedError("compiled only")


def long_of(value: Any, carrier: Any) -> Any:
    """In a kernel: a center as a long number, of its entry and that of the state with its tail."""
    raise NotImplementedError("compiled only")


def lengthened(value: Any, array: Any, random: Any) -> Any:
    """In a kernel: a float32 as a long number, rounded up or down.

    ``array``, of the centers, says which type; ``random``, uint32, decides by its upper 12 bits.
    """
    raise NotImplementedError("compiled only")


def float_of(long: Any) -> Any:
    """In a kernel: a long number as float32."""
    raise NotImplementedError("compiled only")


def head_of(long: Any, array: Any) -> Any:
    """In a kernel: the upper bits of a long number as an entry of ``array``."""
    raise NotImplementedError("compiled only")


def carrying(value: Any, array: Any, random: Any, long: Any) -> Any:
    """In a kernel: a float32 as an entry of ``array`` that carries the tail of a long number.

    It is rounded up or down: ``random``, uint32, decides by its lower 20 bits.
    """
    raise NotImplementedError("compiled only")


def without_tail(value: Any) -> Any:
    """In a kernel: an entry that carries a tail as float32, without it."""
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


@inlined
def _raised(value, lower):  # type: ignore[no-untyped-def]
    """The bits of a float32 and, behind those that will be kept, random ones that may carry.

    An infinity or a NaN stays one: it is found where the run looks for them.
    """
    bits = np.float32(value).view(np.uint32)
    is_finite = np.uint32((bits & np.uint32(0x7F800000)) != np.uint32(0x7F800000))
    return np.uint32(bits + np.uint32(lower) * is_finite)


@overload(rounded, inline="always")
def _rounded(value, array, random):  # type: ignore[no-untyped-def]
    if array.dtype != types.uint16:
        return lambda value, array, random: value

    def at_random(value, array, random):  # type: ignore[no-untyped-def]
        return np.uint16(_raised(value, random & np.uint32(0xFFFF)) >> np.uint32(16))

    return at_random


@overload(long_of, inline="always")
def _long_of(value, carrier):  # type: ignore[no-untyped-def]
    if value == types.uint16:
        return lambda value, carrier: np.uint32(
            (np.uint32(value) << np.uint32(4)) | (np.uint32(carrier) & np.uint32(0xF))
        )
    return lambda value, carrier: value


@overload(lengthened, inline="always")
def _lengthened(value, array, random):  # type: ignore[no-untyped-def]
    if array.dtype != types.uint16:
        return lambda value, array, random: value

    def at_random(value, array, random):  # type: ignore[no-untyped-def]
        return np.uint32(_raised(value, random >> np.uint32(20)) >> np.uint32(12))

    return at_random


@overload(float_of, inline="always")
def _float_of(long):  # type: ignore[no-untyped-def]
    if long == types.uint32:
        return lambda long: np.uint32(long << np.uint32(12)).view(np.float32)
    return lambda long: long


@overload(head_of, inline="always")
def _head_of(long, array):  # type: ignore[no-untyped-def]
    if long == types.uint32:
        return lambda long, array: np.uint16(long >> np.uint32(4))
    return lambda long, array: long


@overload(carrying, inline="always")
def _carrying(value, array, random, long):  # type: ignore[no-untyped-def]
    if array.dtype != types.uint16:
        return lambda value, array, random, long: value

    def at_random(value, array, random, long):  # type: ignore[no-untyped-def]
        upper = np.uint32(_raised(value, random & np.uint32(0xFFFFF)) >> np.uint32(20))
        return np.uint16((upper << np.uint32(4)) | (long & np.uint32(0xF)))

    return at_random


@overload(without_tail, inline="always")
def _without_tail(value):  # type: ignore[no-untyped-def]
    if value != types.uint16:
        return lambda value: value

    def upper(value):  # type: ignore[no-untyped-def]
        return np.uint32((np.uint32(value) & np.uint32(0xFFF0)) << np.uint32(16)).view(np.float32)

    return upper


@inlined
def hashed(x):  # type: ignore[no-untyped-def]
    """A uint32 whose bits all depend on those of another (constants: Wellons, hash-prospector)."""
    x = np.uint32(x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    x = np.uint32(x ^ (x >> np.uint32(15))) * np.uint32(0x735A2D97)
    return np.uint32(x ^ (x >> np.uint32(15)))


@inlined
def row_key(key, row):  # type: ignore[no-untyped-def]
    """The random number that those of a row (a class id) follow from, uint32."""
    low, high = np.uint32(row & 0xFFFFFFFF), np.uint32(row >> 32)
    return hashed(hashed(np.uint32(key) ^ low) + high)


@inlined
def random_bits(key, d):  # type: ignore[no-untyped-def]
    """32 random bits for entry ``d`` of the row with this key, uint32."""
    return hashed(np.uint32(key + np.uint32(d) * np.uint32(0x9E3779B9)))


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


def carrier_to_float32(values: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of a state that carries tails, without them."""
    return to_float32(values & np.uint16(0xFFF0))


def carrier_from_float32(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The values of a state that carries tails, rounded to the nearest; the tails are zero."""
    return ((values.view(np.uint32) + np.uint32(0x80000)) >> 20 << 4).astype(np.uint16)


# Rows that are rounded at a time: intermediate results shall not take the memory that is saved.
_ROWS = 4096


def narrow_rows(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """A matrix in bfloat16, rounded to the nearest."""
    narrow = zeros(values.shape, np.uint16)
    for start in range(0, len(values), _ROWS):
        part = slice(start, start + _ROWS)
        narrow[part] = from_float32(values[part], narrow.dtype)
    return narrow
