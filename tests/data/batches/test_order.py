"""The order of an epoch is a permutation, another one for each epoch, and a random one."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from numpy.typing import NDArray

from data.batches.order import ROUNDS, epoch_keys, mixed, permuted, unit

# Deviations, in standard deviations, that are chance in less than one of a million tests.
_CHANCE = 5.0


def whole(total: int, *seed: int) -> NDArray[np.int64]:
    order: NDArray[np.int64] = permuted(0, total, epoch_keys(*seed), total)
    return order


def excess(counts: NDArray[np.int64], expected: float) -> float:
    """By how many standard deviations chi-square is above its mean."""
    freedom = counts.size - 1
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - freedom) / float(np.sqrt(2 * freedom))


def test_every_image_comes_once_for_every_number_of_images() -> None:
    for total in [*range(1, 3000), 65_535, 65_536, 65_537, 1_000_003]:
        assert np.array_equal(np.sort(whole(total, 7, total)), np.arange(total)), total


def test_every_one_of_ten_million_images_comes_once() -> None:
    total = 10_000_000
    times = np.bincount(whole(total, 3, 1), minlength=total)
    assert times.size == total and (times == 1).all()


@pytest.mark.parametrize("total", [11, 1000, 12_345_678_901])
def test_a_part_of_the_order_is_the_same_alone(total: int) -> None:
    keys = epoch_keys(1, 2)
    first = total // 2
    together = permuted(first, 5, keys, total)
    assert together.dtype == np.int64 and 0 <= together.min() and together.max() < total
    parts = [permuted(first + i, 1, keys, total)[0] for i in range(5)]
    assert together.tolist() == parts
    assert permuted(0, 0, keys, total).size == 0


def test_orders_differ_by_epoch_and_seed_and_come_again() -> None:
    total = 1000
    assert np.array_equal(whole(total, 0, 5, 1), whole(total, 0, 5, 1))
    for other in ((0, 5, 2), (0, 6, 1), (1, 5, 1)):
        # Of random orders, one image on average stands at the same place.
        assert (whole(total, 0, 5, 1) == whole(total, *other)).sum() < 10


def test_an_order_is_pinned() -> None:
    """A run that continues needs the order that it began with."""
    assert whole(10, 0, 1, 2).tolist() == [0, 7, 5, 4, 8, 3, 6, 2, 1, 9]
    assert len(epoch_keys(4)) == ROUNDS + 1


@pytest.mark.parametrize("total", [2, 3, 4, 5, 6, 7])
def test_all_orders_of_few_images_come_equally_often(total: int) -> None:
    """Also the odd ones."""
    numbers = {order: number for number, order in enumerate(permutations(range(total)))}
    each = 40
    keys = np.random.default_rng(total).integers(
        0, 2**64, (each * len(numbers), ROUNDS + 1), dtype=np.uint64
    )
    counts = np.zeros(len(numbers), np.int64)
    for own in keys:
        counts[numbers[tuple(permuted(0, total, own, total).tolist())]] += 1
    assert abs(excess(counts, each)) < _CHANCE


@pytest.mark.parametrize("total", [10, 97, 100])
def test_an_image_is_at_all_places_equally_often(total: int) -> None:
    counts = np.zeros((total, total), np.int64)
    epochs = 50 * total
    for epoch in range(epochs):
        counts[np.arange(total), whole(total, 0, 9, epoch)] += 1
    # Rows and columns have fixed sums.
    freedom = (total - 1) ** 2
    chi_square = float(((counts - epochs / total) ** 2 / (epochs / total)).sum())
    assert abs(chi_square - freedom) / np.sqrt(2 * freedom) < _CHANCE


@pytest.mark.parametrize("lag", [1, 2, 31, 32, 1000])
@pytest.mark.parametrize("total", [100_000, 1_000_000, 1 << 40])
def test_what_follows_an_image_says_nothing_about_it(total: int, lag: int) -> None:
    """Neither by correlation, nor by the pairs of tenths of the set that follow one another."""
    count = 100_000
    order = permuted(0, count, epoch_keys(lag, 3), total) / total
    first, second = order[:-lag], order[lag:]
    correlation = np.corrcoef(first, second)[0, 1]
    assert abs(correlation) * np.sqrt(len(first)) < _CHANCE
    pairs = np.bincount((first * 10).astype(int) * 10 + (second * 10).astype(int), minlength=100)
    assert excess(pairs, len(first) / 100) < _CHANCE


def test_neighbors_of_the_set_are_not_neighbors_of_an_epoch() -> None:
    total = 100_000
    places = np.argsort(whole(total, 8))
    near = (np.abs(np.diff(places)) < 100).sum()
    assert abs(near - 198) < _CHANCE * np.sqrt(198)


def test_orders_of_two_epochs_are_not_alike() -> None:
    first, second = (whole(100_000, 0, 1, epoch) for epoch in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) * np.sqrt(100_000) < _CHANCE


def test_random_numbers_by_hand_and_by_their_distribution() -> None:
    """The first output of the published SplitMix64 with seed 0: it mixes its constant."""
    assert int(mixed(np.uint64(0x9E3779B97F4A7C15))) == 0xE220A8397B1DCDAF
    drawn = np.array([unit(np.uint64(number), np.uint64(5)) for number in range(10_000)])
    assert 0 <= drawn.min() and drawn.max() < 1
    counts = np.bincount((drawn * 100).astype(int), minlength=100)
    assert abs(excess(counts, 100)) < _CHANCE
