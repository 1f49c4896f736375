from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from data.batches.epoch_part import EpochPart, equal_shares
from data.batches.image_loader import (
    BROKEN,
    PADDING,
    ImageLoader,
    TransformedImages,
    each_once,
)
from data.batches.loader import Prefetcher
from data.drawn.patterns import DrawnImages
from data.images.image_set import ImagesInMemory
from data.images.transforms import CenterCrop, PadCropFlip, RandomResizedCrop, Unchanged
from data.records.recordio import BrokenRecordError
from runtime.errors import DataError


def numbered(count: int, size: int = 8) -> ImagesInMemory:
    """Images of the one color of their number."""
    images = np.arange(count, dtype=np.uint8)[:, None, None, None]
    labels = (np.arange(count) % 10).astype(np.uint8)
    return ImagesInMemory(np.broadcast_to(images, (count, size, size, 3)), labels, 10)


def load(
    dataset, transform, count, start=0, *, batch_size=4, rank=0, world_size=1, epoch_part=None,
    shape=(3, 8, 8), threads=2, max_broken=0,
):  # fmt: skip
    epoch_part = epoch_part or EpochPart.of_rank(len(dataset), batch_size, rank, world_size)
    images = TransformedImages(dataset, transform, shape, max_broken)
    settings: dict[str, Any] = {"batch_size": batch_size, "epoch_part": epoch_part, "seed": 7}
    with ImageLoader(images, **settings, threads=threads) as loader:
        batches = list(islice(loader.batches(start), count))
    return np.stack([b.images for b in batches]), np.stack([b.labels for b in batches])


def test_an_epoch_holds_every_image_at_most_once_in_a_new_order() -> None:
    images, labels = load(numbered(26), Unchanged(), 12)
    numbers = images[:, :, 0, 0, 0].reshape(2, 24)
    assert [len(set(epoch)) for epoch in numbers.tolist()] == [24, 24]
    assert numbers[0].tolist() != numbers[1].tolist() != sorted(numbers[1])
    np.testing.assert_array_equal(labels.reshape(2, 24), numbers % 10)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("transform", [PadCropFlip(), RandomResizedCrop(8)])
def test_ranks_share_the_global_batch_of_one_process(world_size: int, transform) -> None:
    dataset = DrawnImages("training", num_classes=5, count=40, shape=(12, 12, 3), seed=1)
    if isinstance(transform, PadCropFlip):
        shape = (3, 12, 12)
    else:
        shape = (3, 8, 8)
    whole, whole_labels = load(dataset, transform, 3, batch_size=6, shape=shape)
    size = 6 // world_size
    parts = [
        load(dataset, transform, 3, batch_size=size, rank=rank, world_size=world_size, shape=shape)
        for rank in range(world_size)
    ]
    np.testing.assert_array_equal(np.concatenate([part[0] for part in parts], axis=1), whole)
    np.testing.assert_array_equal(np.concatenate([part[1] for part in parts], axis=1), whole_labels)


def test_threads_change_nothing_and_a_later_start_is_the_same() -> None:
    dataset = DrawnImages("training", num_classes=5, count=200, shape=(8, 8, 3), seed=1)
    images, labels = load(dataset, PadCropFlip(), 4, batch_size=70, threads=1)
    others, other_labels = load(dataset, PadCropFlip(), 4, batch_size=70, threads=4)
    np.testing.assert_array_equal(images, others)
    np.testing.assert_array_equal(labels, other_labels)
    later, _ = load(dataset, PadCropFlip(), 1, start=3, batch_size=70)
    np.testing.assert_array_equal(images[3:], later)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 7, 23])
def test_every_image_is_tested_exactly_once(world_size: int, count: int) -> None:
    found: list[int] = []
    with Prefetcher(2, 2) as prefetcher:
        for rank in range(world_size):
            options = {"batch_size": 4, "rank": rank, "world_size": world_size}
            images = TransformedImages(numbered(count), Unchanged(), (3, 8, 8))
            for batch in each_once(images, prefetcher, **options):
                assert batch.images.shape == (4, 3, 8, 8)
                counted = batch.labels != PADDING
                found += batch.images[counted, 0, 0, 0].tolist()
                assert (batch.labels[counted] == batch.images[counted, 0, 0, 0] % 10).all()
    assert sorted(found) == list(range(count))


def shared(dataset, transform, count, shares, worker, *, group=None, **options):
    epoch_part = EpochPart.of_worker(len(dataset), 4, worker, shares, group or (worker,))
    return load(dataset, transform, count, epoch_part=epoch_part, **options)


@pytest.mark.parametrize("shares", [equal_shares(4), ((0, 0.125), (0.125, 0.25), (0.25, 1))])
def test_shares_hold_each_image_once_per_epoch(shares) -> None:
    dataset = numbered(96)
    found: list[list[int]] = [[], []]
    for worker, (start, end) in enumerate(shares):
        updates = round((end - start) * 96) // 4
        numbers = shared(dataset, Unchanged(), 2 * updates, shares, worker)[0][:, :, 0, 0, 0]
        found[0] += numbers[:updates].ravel().tolist()
        found[1] += numbers[updates:].ravel().tolist()
    assert sorted(found[0]) == sorted(found[1]) == list(range(96))
    assert found[0] != found[1]


def test_the_smallest_share_of_a_group_determines_the_length_of_an_epoch() -> None:
    shares = ((0, 0.25), (0.25, 1.0))
    parts = [EpochPart.of_worker(100, 4, worker, shares, (0, 1)) for worker in (0, 1)]
    assert [part.updates_per_epoch for part in parts] == [6, 6]
    numbers = shared(numbered(100), Unchanged(), 12, shares, 1, group=(0, 1))[0][:, :, 0, 0, 0]
    assert [len(set(numbers[:6].ravel())), len(set(numbers[6:].ravel()))] == [24, 24]
    assert set(numbers[:6].ravel()) != set(numbers[6:].ravel())


def test_workers_change_their_images_differently() -> None:
    dataset = ImagesInMemory(
        np.broadcast_to(numbered(1, 12).decoded(0)[0] + np.arange(12, dtype=np.uint8)[:, None],
                        (64, 12, 12, 3)), np.zeros(64, np.uint8), 2,
    )  # fmt: skip
    options = {"shape": (3, 8, 8)}
    first, second = (
        shared(dataset, RandomResizedCrop(8), 1, equal_shares(2), worker, **options)[0]
        for worker in (0, 1)
    )
    assert (first != second).any()


def test_a_run_on_the_first_examples_of_each_order() -> None:
    part = EpochPart.of_rank(9, 4, 0, 1)
    numbers = load(numbered(100), Unchanged(), 4, epoch_part=part)[0][:, :, 0, 0, 0]
    assert len(set(numbers[:2].ravel())) == 8
    whole = load(numbered(100), Unchanged(), 2)[0][:, :, 0, 0, 0]
    np.testing.assert_array_equal(numbers[:2], whole)
    assert set(numbers[:2].ravel()) != set(numbers[2:].ravel())


def test_a_share_without_a_batch() -> None:
    with pytest.raises(DataError, match="the share of worker 1 has 3 images, fewer than one"):
        shared(numbered(30), Unchanged(), 1, ((0, 0.9), (0.9, 1)), 0, group=(0, 1))


def test_too_few_images_for_a_global_batch() -> None:
    with pytest.raises(DataError, match="7 images, fewer than one global batch of 8"):
        load(numbered(7), Unchanged(), 1, world_size=2)


def test_an_image_of_another_size() -> None:
    with pytest.raises(DataError, match="of 9 x 9 x 3 .*not of 8 x 8 x 3; bring all to one"):
        load(numbered(20, size=9), Unchanged(), 1)


class PartlyBroken(ImagesInMemory):
    """Numbered images, some of which cannot be read."""

    def __init__(self, count: int, broken: set[int]) -> None:
        whole = numbered(count)
        super().__init__(whole._images, whole._labels, 10)
        self._broken = broken

    def decoded(self, index: int):
        if index in self._broken:
            raise BrokenRecordError(f"image {index} is broken")
        return super().decoded(index)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_next_readable_image_takes_the_place_of_a_broken_one(threads: int, caplog) -> None:
    dataset = PartlyBroken(24, {3, 4, 23})
    images, labels = load(dataset, Unchanged(), 12, threads=threads, max_broken=3)
    numbers = images[:, :, 0, 0, 0].ravel()
    expected = sorted([5, 5, 0, *(set(range(24)) - dataset._broken)])
    assert sorted(numbers[:24]) == sorted(numbers[24:48]) == expected
    np.testing.assert_array_equal(labels.ravel(), numbers % 10)
    # In two epochs each is named once.
    assert len(caplog.records) == 3 and "skipped a broken record: image 23 is" in caplog.text


def test_too_many_broken_images_stop_the_run() -> None:
    with pytest.raises(DataError, match="3 broken records, more than the 2 of --max-bad-records"):
        load(PartlyBroken(24, {3, 4, 23}), Unchanged(), 6, max_broken=2)
    with pytest.raises(DataError, match="8 broken records, which are all of the set"):
        load(PartlyBroken(8, set(range(8))), Unchanged(), 2, max_broken=100)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_broken_images_do_not_count_in_validation(world_size: int) -> None:
    """All ranks make the batches that they would make of whole images."""
    found, broken = [], 0
    with Prefetcher(2, 2) as prefetcher:
        for rank in range(world_size):
            images = TransformedImages(PartlyBroken(23, {0, 7, 8}), Unchanged(), (3, 8, 8), 3)
            for _ in range(2):
                share = list(
                    each_once(images, prefetcher, batch_size=4, rank=rank, world_size=world_size)
                )
            assert len(share) == -(-len(range(rank, 23, world_size)) // 4)
            for batch in share:
                counted = batch.labels >= 0
                found += batch.images[counted, 0, 0, 0].tolist()
                broken += int((batch.labels == BROKEN).sum())
    assert sorted(found) == sorted(set(range(23)) - {0, 7, 8}) and broken == 3


def test_pad_crop_flip_moves_an_image_and_fills_with_black() -> None:
    image = np.arange(1, 193, dtype=np.uint8).reshape(8, 8, 3)
    transform = PadCropFlip(2)
    still, mirrored = np.array([[0.5, 0.5, 0.9], [0.5, 0.5, 0.1]], np.float32)
    np.testing.assert_array_equal(transform.apply(image.copy(), still), image)
    np.testing.assert_array_equal(transform.apply(image.copy(), mirrored), image[:, ::-1])
    corner = transform.apply(image.copy(), np.array([0.0, 0.999, 0.9], np.float32))
    assert not corner[:2].any() and not corner[:, 6:].any()
    np.testing.assert_array_equal(corner[2:, :6], image[:6, 2:])
    places = {
        tuple(np.argwhere(transform.apply(image.copy(), draws)[..., 0])[0])
        for draws in transform.draw(np.random.default_rng(0), 400)
    }
    assert len(places) == 3 * 3


@pytest.mark.parametrize("shape", [(40, 60, 3), (20, 300, 3), (5, 4, 3)])
def test_crops_have_the_size_asked_for(shape) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    transform = RandomResizedCrop(24)
    for draws in transform.draw(np.random.default_rng(1), 50):
        assert transform.apply(image.copy(), draws).shape == (24, 24, 3)
    assert CenterCrop(24).apply(image, np.empty(0, np.float32)).shape == (24, 24, 3)


def test_center_crop_is_the_middle() -> None:
    image = np.zeros((64, 128, 3), np.uint8)
    image[:, 48:80] = 255
    cut = CenterCrop(56).apply(image, np.empty(0, np.float32))
    assert cut[:, 13:43].min() == 255 and not cut[:, :11].any() and not cut[:, 45:].any()


def test_without_jitter_a_random_crop_keeps_the_colors() -> None:
    image = np.full((32, 32, 3), (10, 120, 250), np.uint8)
    transform = RandomResizedCrop(16, color_jitter=0, lighting=0)
    for draws in transform.draw(np.random.default_rng(1), 5):
        np.testing.assert_array_equal(transform.apply(image, draws), image[:16, :16])


def test_drawn_images_depend_on_seed_part_and_number_alone() -> None:
    options: dict[str, Any] = {"num_classes": 3, "count": 9, "shape": (16, 16, 3), "seed": 4}
    training = DrawnImages("training", **options)
    again, validation = DrawnImages("training", **options), DrawnImages("validation", **options)
    np.testing.assert_array_equal(training.decoded(5)[0], again.decoded(5)[0])
    assert training.decoded(5)[1] == validation.decoded(5)[1] == 2
    assert (training.decoded(5)[0] != validation.decoded(5)[0]).any()
