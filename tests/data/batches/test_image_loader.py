from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from data.batches.image_loader import BROKEN, PADDING, ImageLoader, TransformedImages, each_once
from data.batches.loader import Prefetcher
from data.batches.position import EpochPart, equal_shares
from data.drawn.patterns import DrawnImages
from data.images.image_set import ImagesInMemory
from data.images.transforms import PadCropFlip, RandomResizedCrop, Unchanged
from data.records.recordio import BrokenRecordError
from runtime.errors import DataError
from tests.support.sets import assert_refused


class Numbered(ImagesInMemory):
    """Images of the one color of their number, some of which cannot be read."""

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


def numbers(dataset, count, **options) -> np.ndarray:
    """Return the numbers of the images in some batches: ``[batches, images]``."""
    return load(dataset, count, **options)[0][..., 0, 0, 0]


@pytest.mark.parametrize(
    ("transform", "side", "world_size"), [(PadCropFlip(), 12, 2), (RandomResizedCrop(8), 8, 3)]
)
def test_batches_depend_on_seed_and_update_alone(transform, side, world_size: int) -> None:
    """Not on the number of threads and ranks, nor on where the run started."""
    dataset = DrawnImages("training", num_classes=5, count=40, shape=(12, 12, 3), seed=1)
    options: dict[str, Any] = {"transform": transform, "side": side}
    whole = load(dataset, 3, batch_size=6, threads=1, **options)
    later = load(dataset, 1, 2, batch_size=6, threads=4, **options)
    options.update(batch_size=6 // world_size, world_size=world_size)
    parts = zip(*(load(dataset, 3, rank=rank, **options) for rank in range(world_size)))
    for part, end, expected in zip(parts, later, whole):
        np.testing.assert_array_equal(np.concatenate(part, axis=1), expected)
        np.testing.assert_array_equal(end, expected[2:])


@pytest.mark.parametrize(
    ("world_size", "count", "broken"), [(1, 7, ()), (2, 1, ()), (2, 23, (0, 7, 8)), (5, 23, (0,))]
)
def test_every_image_is_tested_exactly_once(world_size: int, count: int, broken) -> None:
    """All ranks make the batches that they would make of whole images."""
    found: list[int] = []
    number_broken = 0
    with Prefetcher(2, 2) as prefetcher:
        for rank in range(world_size):
            images = TransformedImages(Numbered(count, broken), Unchanged(), (3, 8, 8), len(broken))
            options = {"batch_size": 4, "rank": rank, "world_size": world_size}
            # A broken image counts once, however often it is asked for.
            _, share = (list(each_once(images, prefetcher, **options)) for _ in range(2))
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
    return numbers(Numbered(count), updates, epoch_part=epoch_part)


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
    few = numbers(Numbered(100), 4, epoch_part=EpochPart.of_rank(9, 4, 0, 1))
    np.testing.assert_array_equal(few[:2], numbers(Numbered(100), 2))
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
    # By the next readable one.
    shown = images[..., 0, 0, 0].ravel()
    expected = sorted([5, 5, 0, *({*range(24)} - {*broken})])
    assert sorted(shown[:24]) == sorted(shown[24:48]) == expected
    np.testing.assert_array_equal(labels.ravel(), shown % 10)
    # In two epochs each is named once.
    assert len(caplog.records) == 3 and "skipped a broken record: image 23 is" in caplog.text
