"""Sampling: all positives, no repeats, uniform negatives, a cost that follows the sample."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from partial_fc.shard import Sampler, Shard, _sorted_distinct, draw_distinct


def chi_square(counts: np.ndarray, expected: float) -> float:
    """The statistic per degree of freedom: 1 on average when the counts are uniform."""
    return float(((counts - expected) ** 2 / expected).sum() / counts.size)


@pytest.mark.parametrize("count", [0, 1, 7, 40, 60, 99, 100])
def test_draws_are_distinct_sorted_and_in_range(count):
    drawn = draw_distinct(np.random.default_rng(count), 100, count)
    assert drawn.size == count
    assert np.all(np.diff(drawn) > 0)
    assert drawn.size == 0 or (drawn[0] >= 0 and drawn[-1] < 100)


@pytest.mark.parametrize("population", [2**31, 2**31 + 1, 2**40])
def test_populations_beyond_32_bits(population):
    drawn = draw_distinct(np.random.default_rng(0), population, 1000)
    assert drawn.size == 1000 and drawn.dtype == np.int64
    assert np.all(np.diff(drawn) > 0) and 0 <= drawn[0]
    assert 0.98 * population < drawn[-1] < population


@pytest.mark.parametrize("population", [10, 2000, 2**31, 2**40])
def test_numbers_that_come_twice_are_counted_once(population):
    drawn = np.random.default_rng(3).integers(0, population, 9)
    values = np.concatenate([drawn, drawn[:5], [population - 1, 0, 0]])
    distinct = _sorted_distinct(values, population)
    assert distinct.dtype == np.int64 and distinct.tolist() == sorted({*values.tolist()})


def test_draws_are_those_of_earlier_runs():
    """A run that goes on from a checkpoint samples as it would have before."""
    drawn = draw_distinct(np.random.default_rng(7), 1000, 12)
    assert drawn.tolist() == [5, 55, 119, 131, 303, 341, 467, 816, 821, 897, 912, 990]
    assert int(draw_distinct(np.random.default_rng(7), 10**6, 9 * 10**5).sum()) == 449932748712


@pytest.mark.parametrize("count", [3, 20, 45, 70])
def test_draws_are_uniform(count):
    generator = np.random.default_rng(0)
    draws = 4000
    counts = np.zeros(100)
    for _ in range(draws):
        counts[draw_distinct(generator, 100, count)] += 1
    expected = draws * count / 100
    # Drawing without replacement has (1 - count/100) of the variance of independent draws.
    statistic = chi_square(counts, expected) / (1 - count / 100)
    assert 0.6 < statistic < 1.5


def test_pairs_of_values_are_equally_likely():
    generator = np.random.default_rng(1)
    counts = np.zeros((8, 8))
    for _ in range(8000):
        first, second, third = draw_distinct(generator, 8, 3)
        for pair in ((first, second), (first, third), (second, third)):
            counts[pair] += 1
    pairs = counts[np.triu_indices(8, 1)]
    assert chi_square(pairs, pairs.mean()) < 2.0


def test_rows_hold_every_positive_and_targets_point_at_them():
    shard = Shard(1, 3, 301)
    labels = np.random.default_rng(2).integers(301, size=64)
    sample = Sampler(shard, 0.3, seed=0).sample(labels, update=5)
    assert np.all(np.diff(sample.rows) > 0)
    assert sample.rows[0] >= 0 and sample.rows[-1] < shard.size
    assert sample.rows.size == round(0.3 * shard.size)
    for label, target, local in zip(labels, sample.targets, sample.local):
        assert local == (shard.start <= label < shard.stop)
        assert sample.rows[target] == label - shard.start if local else target == 0


def test_more_positives_than_the_ratio_enlarge_the_sample():
    sample = Sampler(Shard(0, 1, 100), 0.1, seed=0).sample(np.arange(30, 60), update=0)
    assert np.array_equal(sample.rows, np.arange(30, 60))


def test_negatives_are_uniform_beside_the_positives():
    sampler = Sampler(Shard(0, 1, 60), 0.2, seed=7)
    labels = np.array([3, 4, 5, 30, 59])
    counts = np.zeros(60)
    for update in range(3000):
        counts[sampler.sample(labels, update).rows] += 1
    assert np.all(counts[labels] == 3000)
    negatives = np.delete(counts, labels)
    assert chi_square(negatives, negatives.mean()) / (1 - 7 / 55) < 1.6


def test_a_sample_depends_on_seed_update_and_rank_alone():
    labels = np.array([1, 2, 3])

    def rows(seed=0, update=0, rank=0):
        return Sampler(Shard(rank, 2, 2000), 0.1, seed).sample(labels, update).rows.tolist()

    assert rows() == rows()
    assert rows() != rows(seed=1)
    assert rows() != rows(update=1)
    assert rows() != rows(rank=1)


def test_ratio_one_takes_the_whole_shard():
    sample = Sampler(Shard(1, 2, 11), 1.0, seed=0).sample(np.array([0, 10]), update=0)
    assert np.array_equal(sample.rows, np.arange(5))
    assert sample.local.tolist() == [False, True] and sample.targets[1] == 4


def test_memory_follows_the_sample_and_not_the_shard():
    sampler = Sampler(Shard(0, 1, 50_000_000), 1e-4, seed=0)
    labels = np.arange(0, 50_000_000, 500_000)
    tracemalloc.start()
    sample = sampler.sample(labels, update=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sample.rows.size == 5000
    assert peak < 1_000_000, "an array of the shard's length was made"


def test_ids_beyond_2_to_the_24_stay_exact():
    """float32 would round these neighbors to the same class."""
    shard = Shard(0, 1, 100_000_000)
    labels = np.array([2**24 + 1, 2**24 + 2, 99_999_999])
    sample = Sampler(shard, 1e-5, seed=0).sample(labels, update=0)
    assert np.array_equal(sample.rows[sample.targets], labels)
