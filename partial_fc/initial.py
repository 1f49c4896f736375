"""Memory for rows of centers, and the centers that a run begins with.

They are read from files of InsightFace, or each is a function of seed and class id alone. So a run
starts from the same centers on any number of ranks, and a center can be made when an update first
needs it: a store on disk (``partial_fc.store``) of any size begins empty.

The random numbers are those of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014), which makes each number from a counter: one stream for each class. Box
and Muller's transform makes two normal numbers of one. Logarithm, sine and cosine are series of
additions and products that no compiler may reorder, so that all processors draw the same.

Shapes: R rows, D embedding.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from partial_fc.shard import DEVIATION, Shard
from runtime.errors import ConfigError, DataError
from runtime.kernels import exactly_inlined, unlocked_kernel
from runtime.untrusted.parameter_file import read_arrays

_FILE_NAME = "{}_centers.param"
"""The file of a rank of an InsightFace run."""

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_F = np.float32
# The bits of sqrt(1/2).
_ROOT = np.int32(0x3F3504F3)


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return zeros on large pages, where the system has them.

    The rows of a sample lie far apart, and with pages of 4 KiB the processor looks up an address
    for every second of them. NumPy requests large pages for all arrays but those of ``np.zeros``.

    Raises:
        ConfigError: the system has not as much memory.
    """
    try:
        array = np.empty(shape, dtype)
    except (MemoryError, ValueError):
        size = math.prod(shape) * np.dtype(dtype).itemsize
        raise ConfigError(
            f"{size / 2**30:,.1f} GiB for {shape[0]:,} rows of centers or of an optimizer's state "
            "cannot be had: check the number of classes (property, --num-classes), start more "
            "ranks, or keep the centers on a disk (--center-store)"
        ) from None
    array.fill(0)
    return array


def initial_centers(shard: Shard, embedding_size: int, seed: int) -> NDArray[np.float32]:
    """Draw the centers of a shard from N(0, 0.01): float32 [shard.size, embedding_size]."""
    centers: NDArray[np.float32] = zeros((shard.size, embedding_size), np.float32)
    draw(np.arange(shard.start, shard.stop), seed, centers)
    return centers


def draw(classes: NDArray[np.int64], seed: int, centers: NDArray[np.float32]) -> None:
    """Write the initial centers of class ids, int64 [R], into float32 [R, D]."""
    _draw(classes, np.uint64(seed % 2**64), centers)


def read_centers(folder: Path, shard: Shard, embedding_size: int) -> NDArray[np.float32]:
    """Return the centers of a shard from files of InsightFace, float32 [shard.size, D].

    Each is one float32 array without a name, as ``mx.nd.save`` writes it: ceil(classes / ranks)
    rows, of which the last file's surplus belongs to no class. Any number of ranks here reads them:
    a rank maps the files and copies the rows of its shard. The files come from strangers, so every
    number in them is checked.

    Raises:
        DataError: a file is missing or damaged, or the centers are of other classes or another
            embedding.
    """
    paths: list[Path] = []
    while (path := folder / _FILE_NAME.format(len(paths))).is_file():
        paths.append(path)
    if not paths:
        raise DataError(
            f"{folder} has no {_FILE_NAME.format(0)}; give the folder of InsightFace's run"
        )
    classes, rows = shard.num_classes, -(-shard.num_classes // len(paths))
    centers = zeros((shard.size, embedding_size), np.float32)
    for path, first in zip(paths, range(0, len(paths) * rows, rows)):
        names, arrays = read_arrays(path)
        if names or len(arrays) != 1 or arrays[0].dtype != np.float32:
            raise DataError(
                f"{path} is no file of centers as MXNet saves it, one float32 matrix without a "
                "name; copy it again"
            )
        (array,) = arrays
        if array.shape != (rows, embedding_size):
            raise DataError(
                f"{path} has centers of shape {array.shape}, but {classes} classes in {len(paths)} "
                f"files and --embedding-size {embedding_size} make {(rows, embedding_size)}; give "
                "the files of all ranks of one run, and the data that they were trained on"
            )
        own = array[max(shard.start - first, 0) : max(shard.stop - first, 0)]
        place = max(first - shard.start, 0)
        centers[place : place + len(own)] = own
    if not np.isfinite(centers).all():
        raise DataError(f"{folder}: centers are not finite; take those of an earlier checkpoint")
    return centers


@exactly_inlined
def _mixed(z):  # type: ignore[no-untyped-def]
    """SplitMix64's hash of 64 bits."""
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@unlocked_kernel
def _draw(classes, key, centers):  # type: ignore[no-untyped-def]
    for row in range(classes.size):
        center = centers[row]
        stream = _mixed(_mixed(key + _GAMMA) + np.uint64(classes[row]) * _GAMMA)
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
