from __future__ import annotations

import threading
import time
from itertools import islice
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.batches.image_loader import BROKEN, ImageLoader, TransformedImages, each_once
from data.batches.loader import PADDING, Batch, Filling, Prefetcher
from data.batches.position import EpochPart, EpochPlan, Position, equal_shares
from data.images.image_set import ImagesInMemory
from data.images.transforms import Unchanged
from data.records.recordio import BrokenRecordError
from data.worker_threads import map_in_order
from runtime.errors import DataError
from tests.support.sets import assert_refused

CHANGES = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 40)), min_size=1, max_size=5)


def test_the_origin_is_where_epochs_of_this_length_would_have_begun():
    assert EpochPlan(10, 3).origin == EpochPlan(10, 3, 4, Position(1, 3)).origin == 0
    # Two epochs of three updates are over; those to come have five.
    assert EpochPlan(10, 2, start_update=6, start=Position(2, 0)).origin == -4
    # Six of ten are used: four are left for batches of two.
    later = EpochPlan(10, 2, start_update=2, start=Position(0, 6))
    assert [tuple(later.at(update)) for update in range(2, 6)] == [(0, 6), (0, 8), (1, 0), (1, 2)]
    assert later.origin == -1 and later.first_update_of(3) == 14


@given(st.integers(12, 99), CHANGES)
def test_no_sample_comes_twice_and_none_is_left_out(num_images, changes):
    used: dict[int, int] = {}
    update, position = 0, Position(0, 0)
    for global_batch, updates in changes:
        plan = EpochPlan(num_images, global_batch, update, position)
        for number in range(update, update + updates):
            epoch, first = plan.at(number)
            assert first == used.get(epoch, 0) and first + global_batch <= num_images
            used[epoch] = first + global_batch
            later = EpochPlan(num_images, global_batch, number, plan.at(number))
            for epoch in range(4):
                assert later.first_update_of(epoch) == max(plan.first_update_of(epoch), number)
            assert later.at(update + updates) == plan.at(update + updates)
        update += updates
        position = plan.at(update)
    # An epoch is left when what remains does not fill the global batch.
    assert sorted(used) == [*range(len(used))]


def test_some_items_are_taken_ahead_and_an_error_replaces_its_result() -> None:
    taken = []
    items = (taken.append(item) or item for item in range(10**6))
    with map_in_order(lambda i: 1 // (40 - i), items, 2) as found:
        assert [next(found) for _ in range(32)] == [1 // (40 - i) for i in range(32)]
        with pytest.raises(ZeroDivisionError):
            next(found)
    assert len(taken) < 1000
    # Leaving does not wait for a thread that hangs.
    release, began = threading.Event(), time.monotonic()
    with map_in_order(lambda _: release.wait(100), range(1), 1):
        pass
    assert time.monotonic() - began < 50
    release.set()


def filling(rows: int, number: int, fill: Any = lambda part: None) -> Filling:
    return Batch(np.zeros((rows, 1), np.uint8), np.full(rows, number)), fill


def test_batches_start_ahead_errors_come_with_their_batch_and_closing_cancels_others() -> None:
    started: list[int] = []
    fillings = (started.append(number) or filling(4, number) for number in range(30))
    with Prefetcher(1) as prefetcher:
        batches: Any = prefetcher.run(fillings)
        for number in range(9):
            assert next(batches).labels[0] == number
            assert len(started) == number + 5
        batches.close()
    calls: list[int] = []
    held, release = threading.Event(), threading.Event()

    def fail(part: slice) -> None:
        # OpenCV uses no threads of its own.
        raise ValueError(f"row 3 is broken, {cv2.getNumThreads()} thread")

    def hold(part: slice) -> None:
        calls.append(1)
        held.set()
        assert release.wait(60)

    with Prefetcher(1) as prefetcher:
        batches = prefetcher.run([filling(4, 0), filling(4, 1, fail)])
        assert next(batches).labels[0] == 0
        assert_refused("row 3 is broken, 1 thread", next, batches, kind=ValueError)
        last = filling(128, 2, lambda part: calls.append(2))
        batches = prefetcher.run([filling(128, 0), filling(128, 1, hold), last])
        next(batches)
        assert held.wait(60)
        batches.close()
        release.set()
    assert calls == [1]


class Numbered(ImagesInMemory):
    def __init__(self, count: int, broken=(), size: int = 8) -> None:
        images = np.arange(count, dtype=np.uint8)[:, None, None, None]
        labels = (np.arange(count) % 10).astype(np.uint8)
        super().__init__(np.broadcast_to(images, (count, size, size, 3)), labels, 10)
        self._broken = broken

    def decoded(self, index: int):
        if index in self._broken:
            raise BrokenRecordError(f"image {index} is broken")
        return super().decoded(index)


def load(
    dataset, count, start=0, *, transform=None, batch_size=4, rank=0, world_size=1,
    epoch_part=None, side=8, threads=2, max_broken=0,
):  # fmt: skip
    epoch_part = epoch_part or EpochPart.of_rank(len(dataset), batch_size, rank, world_size)
    images = TransformedImages(dataset, transform or Unchanged(), (3, side, side), max_broken)
    settings: dict[str, Any] = {"batch_size": batch_size, "epoch_part": epoch_part, "seed": 7}
    with ImageLoader(images, **settings, threads=threads) as loader:
        batches = list(islice(loader.batches(start), count))
    return np.stack([b.images for b in batches]), np.stack([b.labels for b in batches])


@pytest.mark.parametrize(
    ("world_size", "count", "broken"), [(1, 7, ()), (2, 1, ()), (2, 23, (0, 7, 8)), (5, 23, (0,))]
)
def test_every_image_is_tested_exactly_once(world_size: int, count: int, broken) -> None:
    """All ranks make the batches that they would make of whole images."""
    found: list[int] = []
    number_broken = 0
    with Prefetcher(2) as prefetcher:
        for rank in range(world_size):
            images = TransformedImages(Numbered(count, broken), Unchanged(), (3, 8, 8), len(broken))
            chunks = [np.arange(rank, count, world_size)]
            for _ in range(2):
                share = list(each_once(images, prefetcher, chunks, 4, fills_up=True))
            assert len(share) == -(-len(range(rank, count, world_size)) // 4)
            for batch in share:
                assert batch.images.shape == (4, 3, 8, 8)
                counted, shown = batch.labels >= 0, batch.images[:, 0, 0, 0]
                found += shown[counted].tolist()
                assert (batch.labels[counted] == shown[counted] % 10).all()
                assert set(batch.labels[~counted]) <= {PADDING, BROKEN}
                number_broken += int((batch.labels == BROKEN).sum())
    assert sorted(found) == sorted({*range(count)} - {*broken}) and number_broken == len(broken)


def shared(count, updates, shares, worker, group=None) -> np.ndarray:
    epoch_part = EpochPart.of_worker(count, 4, worker, shares, group or (worker,))
    return load(Numbered(count), updates, epoch_part=epoch_part)[0][..., 0, 0, 0]


@pytest.mark.parametrize("shares", [equal_shares(3), ((0, 0.125), (0.125, 0.25), (0.25, 1))])
def test_shares_hold_each_image_once_per_epoch(shares) -> None:
    epochs = []
    for worker, (start, end) in enumerate(shares):
        updates = round((end - start) * 96) // 4
        epochs.append(shared(96, 2 * updates, shares, worker).reshape(2, -1))
    first, second = np.concatenate(epochs, axis=1).tolist()
    assert sorted(first) == sorted(second) == list(range(96)) and first != second


def test_parts_of_the_order() -> None:
    """The smallest share of a group determines its epoch; a run may have the first images alone."""
    shares = ((0, 0.25), (0.25, 1.0))
    parts = [EpochPart.of_worker(100, 4, worker, shares, (0, 1)) for worker in (0, 1)]
    assert [part.updates_per_epoch for part in parts] == [6, 6]
    few = load(Numbered(100), 4, epoch_part=EpochPart.of_rank(9, 4, 0, 1))[0][..., 0, 0, 0]
    np.testing.assert_array_equal(few[:2], load(Numbered(100), 2)[0][..., 0, 0, 0])
    for found, size in ((shared(100, 12, shares, 1, (0, 1)), 24), (few, 8)):
        first, second = map(set, found.reshape(2, size).tolist())
        assert len(first) == len(second) == size and first != second


def test_sets_that_make_no_batch_are_refused_and_broken_images_replaced(caplog) -> None:
    with pytest.raises(DataError, match="the share of worker 1 has 3 images, fewer than one"):
        shared(30, 1, ((0, 0.9), (0.9, 1)), 0, (0, 1))
    broken = (3, 4, 23)
    for dataset, options, message in (
        (Numbered(7), {"world_size": 2}, "7 images, fewer than one global batch of 8"),
        (Numbered(20, size=9), {}, "of 9 x 9 x 3 .*not of 8 x 8 x 3; bring all to one"),
        (Numbered(8, range(8)), {"max_broken": 9}, "8 broken records, which are all of the set"),
        (Numbered(24, broken), {"max_broken": 2}, "3 broken records, more than the 2 of .*; the"),
    ):
        assert_refused(message, load, dataset, 6, **options)
    caplog.clear()
    images, labels = load(Numbered(24, broken), 12, threads=3, max_broken=3)
    shown = images[..., 0, 0, 0].ravel()
    expected = sorted([5, 5, 0, *({*range(24)} - {*broken})])
    assert sorted(shown[:24]) == sorted(shown[24:48]) == expected
    np.testing.assert_array_equal(labels.ravel(), shown % 10)
    assert len(caplog.records) == 3 and "skipped a broken record: image 23 is" in caplog.text
