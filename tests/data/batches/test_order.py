from __future__ import annotations

import numpy as np
import pytest

from data.batches.order import ROUNDS, epoch_keys, mixed, permuted, unit


def whole(total: int, *seed: int) -> np.ndarray:
    return permuted(0, total, epoch_keys(*seed), total)


def test_every_image_comes_once_for_every_number_of_images() -> None:
    for total in [*range(1, 3000), 65_535, 65_536, 65_537, 1_000_003]:
        assert np.array_equal(np.sort(whole(total, 7, total)), np.arange(total)), total


@pytest.mark.parametrize("total", [11, 1000, 12_345_678_901])
def test_a_part_of_the_order_is_the_same_alone(total: int) -> None:
    keys, first = epoch_keys(1, 2), total // 2
    together = permuted(first, 5, keys, total)
    assert together.dtype == np.int64 and 0 <= together.min() and together.max() < total
    assert together.tolist() == [permuted(first + i, 1, keys, total)[0] for i in range(5)]
    assert permuted(0, 0, keys, total).size == 0


def test_an_order_is_pinned() -> None:
    """A run that continues needs the order that it began with."""
    assert whole(10, 0, 1, 2).tolist() == [0, 7, 5, 4, 8, 3, 6, 2, 1, 9]
    assert len(epoch_keys(4)) == ROUNDS + 1
    for other in ((0, 5, 2), (0, 6, 1), (1, 5, 1)):
        # Of random orders, one image on average stands at the same place.
        assert (whole(1000, 0, 5, 1) == whole(1000, *other)).sum() < 10


def test_random_numbers_by_hand_and_by_their_distribution() -> None:
    """The first output of the published SplitMix64 with seed 0: it mixes its constant."""
    assert int(mixed(np.uint64(0x9E3779B97F4A7C15))) == 0xE220A8397B1DCDAF
    drawn = np.array([unit(np.uint64(number), np.uint64(5)) for number in range(10_000)])
    counts = np.bincount((drawn * 100).astype(int), minlength=100)
    assert 0 <= drawn.min() and drawn.max() < 1 and counts.min() > 50 and counts.max() < 150
