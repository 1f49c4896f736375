from __future__ import annotations

import threading
from typing import Any

import cv2
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data.batches.loader import Batch, Filling, Prefetcher
from tests.support.sets import assert_refused


def filling(rows: int, number: int, fill: Any = lambda part: None) -> Filling:
    return Filling(Batch(np.zeros((rows, 1), np.uint8), np.full(rows, number)), fill)


@given(st.lists(st.integers(1, 600), max_size=12), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_batches_come_in_order_and_every_row_is_filled_once(sizes, threads, ahead) -> None:
    def fillings():
        for number, rows in enumerate(sizes):
            batch = filling(rows, number).batch

            def fill(part: slice, images=batch.images) -> None:
                assert 0 < part.stop - part.start <= 128
                images[part] += 1

            yield Filling(batch, fill)

    with Prefetcher(threads, ahead) as prefetcher:
        found = 0
        for found, batch in enumerate(prefetcher.run(fillings()), 1):
            assert batch.images.shape == (sizes[found - 1], 1) and (batch.labels == found - 1).all()
            # All of it, when it is returned.
            assert (batch.images == 1).all()
    assert found == len(sizes)


def test_batches_are_started_ahead_of_the_first_that_is_returned() -> None:
    started: list[int] = []
    fillings = (started.append(number) or filling(4, number) for number in range(30))
    with Prefetcher(1, 3) as prefetcher:
        batches: Any = prefetcher.run(fillings)
        for number in range(9):
            assert next(batches).labels[0] == number
            assert len(started) == number + 4
        batches.close()


def test_errors_are_raised_with_their_batch_and_closing_cancels_what_has_not_begun() -> None:
    calls: list[int] = []
    held, release = threading.Event(), threading.Event()

    def fail(part: slice) -> None:
        # OpenCV uses no threads of its own.
        raise ValueError(f"row 3 is broken, {cv2.getNumThreads()} thread")

    def hold(part: slice) -> None:
        calls.append(1)
        held.set()
        assert release.wait(60)

    with Prefetcher(1, 2) as prefetcher:
        batches: Any = prefetcher.run([filling(4, 0), filling(4, 1, fail)])
        assert next(batches).labels[0] == 0
        assert_refused("row 3 is broken, 1 thread", next, batches, kind=ValueError)
        last = filling(128, 2, lambda part: calls.append(2))
        batches = prefetcher.run([filling(128, 0), filling(128, 1, hold), last])
        next(batches)
        assert held.wait(60)
        batches.close()
        release.set()
    assert calls == [1]
