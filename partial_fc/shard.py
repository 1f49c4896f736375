"""What one rank holds of the head: its classes, their initial centers, and state for each.

All code that divides something along the class axis (centers, labels, checkpoints, the dry run)
uses ``Shard``. Neither MXNet nor Numba is imported, for the sake of the dry run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

# Classes whose initial centers come from one generator, and the deviation of these centers.
_BLOCK = 1024
_DEVIATION = 0.01


@dataclass(frozen=True)
class Shard:
    """The half-open range of class ids ``[start, stop)`` that one rank holds.

    The first ``num_classes % world_size`` ranks hold one class more. Rounding up instead would put
    classes that do not exist into the denominator of the softmax.
    """

    rank: int
    world_size: int
    num_classes: int

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.world_size, (self.rank, self.world_size)
        assert self.num_classes >= 0, self.num_classes

    @property
    def start(self) -> int:
        """The first class id of the shard."""
        quotient, remainder = divmod(self.num_classes, self.world_size)
        return self.rank * quotient + min(self.rank, remainder)

    @property
    def stop(self) -> int:
        """One past the last class id of the shard."""
        return self.start + self.size

    @property
    def size(self) -> int:
        """How many classes the shard holds: ``C // n + (rank < C % n)``."""
        quotient, remainder = divmod(self.num_classes, self.world_size)
        return quotient + (self.rank < remainder)


def initial_centers(shard: Shard, embedding_size: int, seed: int) -> NDArray[np.float32]:
    """Draw the centers of a shard from N(0, 0.01): float32 [shard.size, embedding_size].

    A center depends on class id and seed alone, so that a run starts from the same ones on any
    number of ranks. MXNet seeds all processes alike: its generator would give every rank the same.
    """
    centers = np.empty((shard.size, embedding_size), dtype=np.float32)
    for block in range(shard.start // _BLOCK, -(-shard.stop // _BLOCK)):
        generator = np.random.default_rng((seed, block))
        values = generator.standard_normal((_BLOCK, embedding_size), dtype=np.float32)
        first = block * _BLOCK
        start, stop = max(shard.start, first), min(shard.stop, first + _BLOCK)
        centers[start - shard.start : stop - shard.start] = values[start - first : stop - first]
    centers *= np.float32(_DEVIATION)
    return centers


class RowState(NamedTuple):
    """An array that an optimizer keeps: as wide as the centers, or a number for each row."""

    dtype: DTypeLike
    wide: bool

    def shape(self, num_rows: int, embedding_size: int) -> tuple[int, ...]:
        """The shape for ``num_rows`` centers of length ``embedding_size``."""
        return (num_rows, embedding_size) if self.wide else (num_rows,)

    def num_bytes(self, num_rows: int, embedding_size: int) -> int:
        """The memory that the array takes."""
        elements = num_rows * embedding_size if self.wide else num_rows
        return elements * np.dtype(self.dtype).itemsize


_ADAM = {
    "first_moments": RowState(np.float32, wide=True),
    "second_moments": RowState(np.float32, wide=True),
    "step_counts": RowState(np.int32, wide=False),
}
# By the names of the optimizers of the centers.
STATES: dict[str, dict[str, RowState]] = {
    "sgd": {"momenta": RowState(np.float32, wide=True)},
    "adam": _ADAM,
    "adamw": _ADAM,
}
