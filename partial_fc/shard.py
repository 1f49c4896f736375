"""A rank's shard of the head (classes, optimizer states), and its sample of a step.

All code that divides something along the class axis (centers, labels, checkpoints, the dry run)
uses ``Shard``. Neither MXNet nor Numba is imported, for the sake of the dry run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]

# The standard deviation of the numbers of an initial center.
DEVIATION = 0.01
# Bytes of a class in the index of ``partial_fc.store.records``.
ENTRY = 8


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


def centers_of(directions: NDArray[np.float32], drawn: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return centers of these directions, as long as drawn ones are on average.

    The length decides how far an update turns a center, so it has to be that of drawn ones. Where a
    direction, float32 [rows, D], is 0, the drawn center of ``partial_fc.initial`` is kept.
    """
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    length = np.float32(DEVIATION * np.sqrt(directions.shape[1]))
    scaled = directions * (length / np.where(norms > 0, norms, np.float32(1)))
    centers: NDArray[np.float32] = np.where(norms > 0, scaled, drawn)
    return centers


class RowState(NamedTuple):
    """An array that an optimizer keeps: as wide as the centers, or a number for each row."""

    dtype: str
    wide: bool

    def shape(self, num_rows: int, embedding_size: int) -> tuple[int, ...]:
        """The shape for ``num_rows`` centers of length ``embedding_size``."""
        return (num_rows, embedding_size) if self.wide else (num_rows,)

    def num_bytes(self, num_rows: int, embedding_size: int) -> int:
        """Return the memory that the array takes."""
        return math.prod(self.shape(num_rows, embedding_size)) * np.dtype(self.dtype).itemsize


_ADAM = {
    "first_moments": RowState("float32", wide=True),
    "second_moments": RowState("float32", wide=True),
    "step_counts": RowState("int32", wide=False),
}
# By the names of the optimizers of the centers.
STATES: dict[str, dict[str, RowState]] = {
    "sgd": {"momenta": RowState("float32", wide=True)},
    "adam": _ADAM,
    "adamw": _ADAM,
}


@dataclass(frozen=True)
class Sample:
    """The rows of one step on one rank, and where the targets of the global batch are in them.

    Attributes:
        rows: int64 [S], sorted and distinct rows of the shard (class id minus ``shard.start``).
        targets: int64 [B], the column of each label in ``rows``; 0 where the label is elsewhere.
        local: bool [B], whether the label belongs to this shard.
        update: the number of the step.
    """

    rows: Int64Array
    targets: Int64Array
    local: NDArray[np.bool_]
    update: int = 0


class Sampler:
    """Draws a share of a shard for each step, as a pure function of (seed, update, rank).

    Partial FC (An et al., "Partial FC: Training 10 Million Identities on a Single Machine", 2021,
    section 3.2) computes logits for a part of the class centers only: every class that occurs in
    the global batch and random others. Each rank samples its own shard. A shard may hold millions
    of rows, so the cost grows with the sample: nothing is allocated or scanned that is as long as
    the shard unless the sample is.
    """

    def __init__(self, shard: Shard, ratio: float, seed: int) -> None:
        assert 0.0 < ratio <= 1.0, ratio
        assert shard.size > 0, shard
        self._shard = shard
        self._seed = seed
        self.num_rows = max(1, round(shard.size * ratio))

    def sample(self, labels: Int64Array, update: int) -> Sample:
        """Sample the shard for a global batch with these class ids, int64 [B].

        All positives are kept: a batch that holds more of them than ``num_rows`` makes the sample
        larger, because a target without its row would have no logit.
        """
        local = (labels >= self._shard.start) & (labels < self._shard.stop)
        positives = np.unique(labels[local]) - self._shard.start
        rows = self._rows(positives, update)
        targets = np.where(local, np.searchsorted(rows, labels - self._shard.start), 0)
        return Sample(rows, targets, local, update)

    def _rows(self, positives: Int64Array, update: int) -> Int64Array:
        if self.num_rows >= self._shard.size:
            return np.arange(self._shard.size, dtype=np.int64)
        missing = self.num_rows - positives.size
        if missing <= 0:
            return positives
        generator = np.random.default_rng((self._seed, update, self._shard.rank))
        negatives = draw_distinct(generator, self._shard.size - positives.size, missing)
        # Drawn as positions among the other classes: add the number of positives before each. Both
        # are sorted, and far fewer places are looked up than rows are drawn.
        places = np.searchsorted(negatives, positives - np.arange(positives.size))
        negatives += np.bincount(places, minlength=missing + 1)[:missing].cumsum()
        return np.insert(negatives, np.searchsorted(negatives, positives), positives)


def draw_distinct(generator: np.random.Generator, population: int, count: int) -> Int64Array:
    """Draw ``count`` of ``range(population)`` uniformly without replacement; sorted int64 [count].

    Draws with replacement until there are enough distinct values and then drops random ones. All
    values are treated alike, so every subset is equally likely. More than half of the population is
    drawn through its complement, which keeps the number of draws below 1.4 times the population's
    half; less costs O(count log count) whatever the population.
    """
    assert 0 <= count <= population, (count, population)
    if 2 * count > population:
        kept = np.ones(population, dtype=bool)
        kept[draw_distinct(generator, population, population - count)] = False
        return np.flatnonzero(kept)
    distinct = np.empty(0, dtype=np.int64)
    while distinct.size < count:
        # The expected number of draws for the distinct values that are missing, and some more.
        free = population - distinct.size
        missing = count - distinct.size
        draws = int(-population * np.log1p(-missing / (free + 1)) * 1.02) + 16
        fresh = generator.integers(population, size=draws, dtype=np.int64)
        distinct = _sorted_distinct(np.concatenate([distinct, fresh]), population)
    surplus = distinct.size - count
    if surplus:
        dropped = generator.choice(distinct.size, surplus, replace=False, shuffle=False)
        distinct = np.delete(distinct, dropped)
    return distinct


def _sorted_distinct(values: Int64Array, population: int) -> Int64Array:
    """Return the distinct ones of numbers below ``population``, sorted."""
    if population > 64 * values.size:
        return np.unique(values)
    # It takes the processors from the operators of the step for half of the time of a sort.
    marks = np.zeros(population, np.bool_)
    marks[values] = True
    return np.flatnonzero(marks)
