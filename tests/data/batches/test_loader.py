"""Batches that are filled ahead by threads: how many, in which order, and how errors come back."""

from __future__ import annotations

import threading
from typing import Any

import cv2
import numpy as np
import pytest

from data.batches.loader import Batch, Filling, Prefetcher


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
    """Four at a time."""
    begun: list[int] = []

    def fillings():
        for number in range(30):
            begun.append(number)
            yield filling(4, number, [])

    with Prefetcher(1, ahead) as prefetcher:
        batches: Any = prefetcher.run(fillings())
        for number in range(9):
            assert next(batches).labels[0] == number
            assert len(begun) == number // 4 * 4 + ahead + 4
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
    found: list[int] = []
    with Prefetcher(1, 1) as prefetcher:
        list(prefetcher.run([Filling(batch_of(4, 1), lambda _: found.append(cv2.getNumThreads()))]))
    assert found == [1]
