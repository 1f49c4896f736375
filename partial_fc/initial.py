"""Memory for rows of centers, and initial centers, each a function of seed and class id alone.

So a run starts from the same centers on any number of ranks, and a center can be made when an
update first needs it: a store on disk (``partial_fc.store``) of any size begins empty.

The random numbers are those of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014), which makes each number from a counter: one stream for each class. Box
and Muller's transform makes two normal numbers of one. Logarithm, sine and cosine are series of
additions and products that no compiler may reorder, so that all processors draw the same.

Shapes: R rows, D embedding.
"""

from __future__ import annotations

import math
import mmap
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from partial_fc.shard import DEVIATION, Shard
from runtime import environment
from runtime.errors import ConfigError
from runtime.kernels.compiled import exactly_inlined, unlocked_kernel

# Bytes of an array that has large pages, which are of 2 MiB on x86.
_LARGE = 2**22
# Rows that one task of a thread draws.
_ROWS_PER_TASK = 4096

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_F = np.float32
# The bits of sqrt(1/2).
_ROOT = np.int32(0x3F3504F3)


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Zeros, as ``np.zeros``, that begin at a page, on large pages where the system has them.

    The rows of a sample lie far apart, and with pages of 4 KiB the processor looks up an address
    for every second of them. NumPy requests large pages for all arrays but those of ``np.zeros``,
    but places them 16 bytes behind the page: each wide access then meets two cache lines, a tenth
    of the time of a pass over rows.

    Raises:
        ConfigError: the system has not as much memory.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < _LARGE:
        return np.zeros(shape, dtype)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise ConfigError(
            f"{size / 2**30:,.1f} GiB for {shape[0]:,} rows of centers or of an optimizer's state "
            f"cannot be had ({error.strerror}): check the number of classes (property, "
            "--num-classes), start more ranks, or keep the centers on a disk (--center-store)"
        ) from None
    # A kernel without them.
    with suppress(OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)


def initial_centers(shard: Shard, embedding_size: int, seed: int) -> NDArray[np.float32]:
    """Draw the centers of a shard from N(0, 0.01): float32 [shard.size, embedding_size]."""
    centers: NDArray[np.float32] = zeros((shard.size, embedding_size), np.float32)

    def draw_part(first: int) -> None:
        part = centers[first : first + _ROWS_PER_TASK]
        draw(np.arange(len(part)) + shard.start + first, seed, part)

    with ThreadPoolExecutor(environment.visible_threads()) as threads:
        for _ in threads.map(draw_part, range(0, shard.size, _ROWS_PER_TASK)):
            pass
    return centers


def draw(classes: NDArray[np.int64], seed: int, centers: NDArray[np.float32]) -> None:
    """Write the initial centers of class ids, int64 [R], into float32 [R, D]."""
    _draw(classes, np.uint64(seed % 2**64), centers)


@exactly_inlined
def _mixed(z):  # type: ignore[no-untyped-def]
    """SplitMix64's hash of 64 bits."""
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@exactly_inlined
def _draw_row(class_id, key, center):  # type: ignore[no-untyped-def]
    """Write the initial center of one class into float32 [D]."""
    stream = _mixed(_mixed(key + _GAMMA) + np.uint64(class_id) * _GAMMA)
    half = (center.size + 1) // 2
    rest = center.size - half
    for d in range(half):
        bits = _mixed(stream + np.uint64(d + 1) * _GAMMA)
        # The radius: sqrt(-2 ln u) with u = (1 to 2^24) / 2^24, from the number's exponent and
        # the series of ln((1 + s) / (1 - s)) for its mantissa between sqrt(1/2) and sqrt(2).
        whole = np.float32(np.int32(bits >> np.uint64(40)) + np.int32(1))
        pattern = np.int32(whole.view(np.int32) - _ROOT)
        exponent = np.int32((pattern >> np.int32(23)) - np.int32(24))
        mantissa = np.int32((pattern & np.int32(0x7FFFFF)) + _ROOT).view(np.float32)
        s = (mantissa - _F(1.0)) / (mantissa + _F(1.0))
        q = s * s
        series = _F(2 / 9) * q + _F(2 / 7)
        series = series * q + _F(2 / 5)
        series = series * q + _F(2 / 3)
        series = series * q + _F(2.0)
        logarithm = _F(exponent) * _F(math.log(2)) + series * s
        radius = np.sqrt(max(_F(0.0), _F(-2.0) * logarithm)) * _F(DEVIATION)
        # The angle: a quadrant, and x between -pi/4 and pi/4 in it.
        low = np.int32(np.uint32(bits & np.uint64(0xFFFFFFFF)) >> np.uint32(2))
        x = (_F(low) * _F(2.0**-30) - _F(0.5)) * _F(math.pi / 2)
        y = x * x
        sine = _F(1 / 362880) * y - _F(1 / 5040)
        sine = sine * y + _F(1 / 120)
        sine = sine * y - _F(1 / 6)
        sine = (sine * y + _F(1.0)) * x
        cosine = _F(1 / 40320) * y - _F(1 / 720)
        cosine = cosine * y + _F(1 / 24)
        cosine = cosine * y - _F(1 / 2)
        cosine = cosine * y + _F(1.0)
        # Its two lowest bits, which the angle has not used, choose the quadrant.
        across = (bits & np.uint64(1)) != np.uint64(0)
        back = (bits & np.uint64(2)) != np.uint64(0)
        first = sine if across else cosine
        second = -cosine if across else sine
        radius = -radius if back else radius
        center[d] = radius * first
        if d < rest:
            center[half + d] = radius * second


@unlocked_kernel
def _draw(classes, key, centers):  # type: ignore[no-untyped-def]
    for row in range(classes.size):
        _draw_row(classes[row], key, centers[row])
