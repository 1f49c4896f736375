"""Batches that are filled ahead by threads: how many, in which order, and how errors come back."""

from __future__ import annotations

import threading
from typing import Any

import cv2
import numpy as np
import pytest

from data.batches.loader import Batch, Filling, Loader, Prefetcher


def batch_of(rows: int, number: int) -> Batch:
    return Batch(np.zeros((rows, 1), np.uint8), np.full(rows, number))


def filling(rows: int, number: int, calls: list) -> Filling:
    def fill(part: slice) -> None:
        calls.append((number, part.start, part.stop))

    return Filling(batch_of(rows, number), fill)


def test_batches_come_in_their_order_and_every_row_is_filled_once() -> None:
    calls: list = []
    with Prefetcher(3, 2) as prefetcher:
        found = list(prefetcher.run(filling(300, number, calls) for number in range(5)))
    assert [batch.labels[0] for batch in found] == [0, 1, 2, 3, 4]
    for number in range(5):
        parts = sorted((start, stop) for one, start, stop in calls if one == number)
        rows = [row for start, stop in parts for row in range(300)[start:stop]]
        assert rows == list(range(300)) and len(parts) == 3


@pytest.mark.parametrize("ahead", [1, 3])
def test_batches_are_begun_ahead_of_the_first_that_is_returned(ahead: int) -> None:
    begun: list[int] = []

    def fillings():
        for number in range(9):
            begun.append(number)
            yield filling(4, number, [])

    with Prefetcher(1, ahead) as prefetcher:
        batches: Any = prefetcher.run(fillings())
        for number in range(4):
            assert next(batches).labels[0] == number
            assert len(begun) == number + ahead + 1
        batches.close()


def test_an_error_in_a_thread_is_raised_where_its_batch_is_asked_for() -> None:
    def fail(part: slice) -> None:
        raise ValueError("row 3 is broken")

    with Prefetcher(2, 2) as prefetcher:
        batches: Any = prefetcher.run([filling(4, 0, []), Filling(batch_of(4, 1), fail)])
        assert next(batches).labels[0] == 0
        with pytest.raises(ValueError, match="row 3 is broken"):
            next(batches)


def test_closing_the_batches_cancels_tasks_that_have_not_begun() -> None:
    calls: list = []
    held, release = threading.Event(), threading.Event()

    def hold(part: slice) -> None:
        held.set()
        assert release.wait(60)

    with Prefetcher(1, 2) as prefetcher:
        fillings = [filling(4, 0, calls), Filling(batch_of(4, 1), hold), filling(4, 2, calls)]
        batches: Any = prefetcher.run(fillings)
        next(batches)
        assert held.wait(60)
        batches.close()
        release.set()
    assert [number for number, _, _ in calls] == [0]


def test_opencv_uses_no_threads_of_its_own() -> None:
    with Prefetcher(1, 1) as prefetcher:
        order = prefetcher.begin(lambda number: np.array([number, cv2.getNumThreads()]), 7)
        assert order.result().tolist() == [7, 1]


def test_the_order_of_the_next_epoch_is_made_before_it_begins_and_once() -> None:
    made: list[int] = []

    class Ordered(Loader):
        def _shuffled(self, epoch: int) -> np.ndarray:
            made.append(epoch)
            return np.arange(10, dtype=np.int32) + 100 * epoch

    with Ordered(threads=1) as loader:
        rows = loader._order(4, 2, 3)
        assert rows.tolist() == [402, 403, 404] and rows.base is None
        assert loader._order(4, 9, 5).tolist() == [409]
        assert loader._order(5, 0, 1).tolist() == [500]
        assert loader._order(5, 1, 1).tolist() == [501]
        # The end of the block drops what no thread has begun.
        loader._orders[6].result()
    assert sorted(made) == [4, 5, 6]
