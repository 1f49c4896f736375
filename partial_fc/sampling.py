"""The positive classes and random negatives of one step.

Partial FC (An et al., "Partial FC: Training 10 Million Identities on a Single Machine", 2021,
section 3.2) computes logits for a part of the class centers only: every class that occurs in the
global batch and random others. Each rank samples its own shard. A shard may hold millions of rows,
so the cost grows with the sample: nothing here allocates or scans an array of the shard's length
unless the sample itself is that long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partial_fc.shard import Shard

Int64Array = NDArray[np.int64]


@dataclass(frozen=True)
class Sample:
    """The rows of one step on one rank, and where the targets of the global batch are in them.

    Attributes:
        rows: int64 [S], sorted and distinct rows of the shard (class id minus ``shard.start``).
        targets: int64 [B], the column of each label in ``rows``; 0 where the label is elsewhere.
        local: bool [B], whether the label belongs to this shard.
    """

    rows: Int64Array
    targets: Int64Array
    local: NDArray[np.bool_]


class Sampler:
    """Draws a share of a shard for each step, as a pure function of (seed, update, rank)."""

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
        return Sample(rows, targets, local)

    def _rows(self, positives: Int64Array, update: int) -> Int64Array:
        if self.num_rows >= self._shard.size:
            return np.arange(self._shard.size, dtype=np.int64)
        missing = self.num_rows - positives.size
        if missing <= 0:
            return positives
        generator = np.random.default_rng((self._seed, update, self._shard.rank))
        negatives = draw_distinct(generator, self._shard.size - positives.size, missing)
        # Drawn as positions among the other classes: add the number of positives before each.
        gaps = positives - np.arange(positives.size)
        negatives += np.searchsorted(gaps, negatives, side="right")
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
        distinct = np.unique(np.concatenate([distinct, fresh]))
    surplus = distinct.size - count
    if surplus:
        dropped = generator.choice(distinct.size, surplus, replace=False, shuffle=False)
        distinct = np.delete(distinct, dropped)
    return distinct
