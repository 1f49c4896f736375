from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

import cv2
import numpy as np
import pytest

from data.batches import loader as loader_module
from data.batches.face_loader import FaceLoader, Faces, MemoryBatches
from data.batches.image_loader import BROKEN
from data.batches.order import ROUNDS, epoch_keys, permuted
from data.batches.position import Position
from data.decoding import fit_to
from data.images.transforms import CHANGES_OF_FACES, Augmentation
from data.options import FaceDataOptions
from data.records.record_set import RecordSet
from tests.support.sets import assert_refused, overwrite, pack_set


def whole(total: int, *seed: int) -> np.ndarray:
    return permuted(0, total, epoch_keys(*seed), total)


def test_rows_without_an_image_are_black() -> None:
    def load(row: int, index: int) -> Any:
        return (None, BROKEN) if index == 9 else (np.full((4, 5, 3), index, np.uint8), index)

    indices = np.array([8, 9])
    batch, fill = loader_module.empty_batch((3, 4, 5), 3, indices, load)
    fill(slice(0, 3))
    assert batch.labels.tolist() == [8, BROKEN, loader_module.PADDING]
    assert (batch.images[0] == 8).all() and not batch.images[1:].any()


def test_every_image_comes_once_for_every_number_of_images() -> None:
    for total in [*range(1, 3000), 65_535, 65_536, 65_537, 1_000_003]:
        assert np.array_equal(np.sort(whole(total, 7, total)), np.arange(total)), total


def test_an_order_is_pinned_as_are_random_numbers() -> None:
    """A run that continues needs the order that it began with."""
    assert whole(10, 0, 1, 2).tolist() == [0, 7, 5, 4, 8, 3, 6, 2, 1, 9]
    assert len(epoch_keys(4)) == ROUNDS + 1
    for other in ((0, 5, 2), (0, 6, 1), (1, 5, 1)):
        # Of random orders, one image on average stands at the same place.
        assert (whole(1000, 0, 5, 1) == whole(1000, *other)).sum() < 10


class Labels:
    """A set of which only the labels are known."""

    path, num_classes, image_size = "made up", 30, (8, 8)

    def __init__(self, labels: Any) -> None:
        self._labels = np.array(labels, np.int32)

    def __len__(self) -> int:
        return len(self._labels)

    def where(self, index: int) -> str:
        return f"image {index}"

    def decoded(self, index: int) -> tuple[np.ndarray, int]:
        return np.zeros((8, 8, 3), np.uint8), int(self._labels[index])

    def label_chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """In pieces of several lengths."""
        for start, stop in ((0, 100), (100, 101), (101, 260), (260, 333)):
            if start < len(self):
                yield start, self._labels[start:stop]

    def labels_between(self, start: int, stop: int) -> np.ndarray:
        return self._labels[start:stop]


def select(labels: Any, min_images: int = 0, class_balance: float = 0.0) -> Faces:
    dataset: Any = Labels(labels)
    return Faces(dataset, FaceDataOptions(min_images=min_images, class_balance=class_balance))


@pytest.fixture
def labels() -> np.ndarray:
    labels = np.random.default_rng(4).integers(-1, 30, 333).astype(np.int32)
    # One class has no images at all.
    return np.where(labels == 17, 3, labels)


@pytest.mark.parametrize("min_images", [1, 10, 13])
def test_images_and_classes_by_hand(labels: np.ndarray, min_images: int, caplog) -> None:
    chosen = select(labels, min_images)
    unreadable = np.flatnonzero(labels < 0)
    assert f"made up: {len(unreadable)} of 333 records are unreadable and left" in caplog.text
    counts = {label: int((labels == label).sum()) for label in range(30)}
    kept = [label for label in range(30) if counts[label] >= min_images]
    images = [i for i, label in enumerate(labels) if label in kept]
    assert 0 < len(kept) < 30
    assert (chosen.num_classes, len(chosen)) == (len(kept), len(images))
    for index, label in enumerate(labels.tolist()):
        if label in kept:
            assert chosen.decoded(index)[1] == kept.index(label)
        elif label >= 0:
            assert_refused(f"its label is {label}, which --min-images", chosen.decoded, index)
    for start, stop in ((0, len(kept)), (1, 3), (2, 2)):
        found = np.concatenate([*chosen.of_classes(start, stop)]).tolist()
        assert found == [image for image in images if labels[image] in kept[start:stop]]
    keys = epoch_keys(1)
    expected = np.array(images)[permuted(0, len(images), keys, len(images))]
    for first, count in ((0, len(images)), (7, 20), (9, 0)):
        order = chosen.order(keys, first, count)
        assert order.dtype == np.int64 and (order == expected[first : first + count]).all()
    for index in range(len(labels)):
        assert chosen.following(index) == min([i for i in images if i > index] or images)


def test_everything_is_chosen_without_a_limit_and_without_looking_up_labels(labels: Any) -> None:
    nothing: Any = Labels(np.zeros(333))
    nothing.label_chunks = nothing.labels_between = None
    chosen = Faces(nothing, FaceDataOptions())
    assert (len(chosen), chosen.num_classes) == (333, 30)
    assert [chosen.following(i) for i in (0, 332)] == [1, 0]
    assert_refused("made up: no identity has 99 images or more", select, labels, 99)
    assert_refused("made up: no image has a readable label", select, np.full(9, -1), 0, 1.0)


@pytest.mark.parametrize(("balance", "min_images"), [(0.5, 0), (1.0, 6), (1.5, 0)])
def test_images_come_by_the_size_of_their_class(labels: Any, balance: float, min_images) -> None:
    """Each w times on average, and never 2 or more away from that."""
    labels = np.where(np.arange(len(labels)) % 3 > 1, 5, labels)
    chosen = select(labels, min_images, balance)
    sizes = np.bincount(labels[labels >= 0], minlength=30)
    is_kept = (labels >= 0) & (sizes[labels] >= min_images)
    weights = np.where(is_kept, 1.0 / sizes[labels] ** balance, 0.0)
    weights *= len(chosen) / weights.sum()
    assert weights.max() > 3 * weights[is_kept].min()
    total, epochs = np.zeros(len(labels)), 60
    for epoch in range(epochs):
        order = chosen.order(epoch_keys(epoch), 0, len(chosen))
        assert order.dtype == np.int64 and len(order) == len(chosen)
        times = np.bincount(order, minlength=len(labels))
        assert (np.abs(times - weights) < 2).all() and not times[~is_kept].any()
        total += times
    # A number of hits has a variance below 1/2.
    np.testing.assert_allclose(total / epochs, weights, atol=5 * np.sqrt(0.5 / epochs))
    orders = [chosen.order(epoch_keys(seed), 0, len(chosen)).tolist() for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sum(first > second for first, second in zip(orders[0], orders[0][1:])) > 100


def open_loader(path, *, rank=0, world_size=1, seed=7, **options) -> FaceLoader:
    """Open a loader; ``options`` are those of ``FaceDataOptions``."""
    data = FaceDataOptions(**{"batch_size": 4, "threads": 2, **options})
    ranks = {"rank": rank, "world_size": world_size}
    return FaceLoader(RecordSet(path), data, **ranks, seed=seed)


def joined(batches):
    batches = list(batches)
    return np.concatenate([b.images for b in batches]), np.concatenate([b.labels for b in batches])


def load(path, count: int, start: int = 0, **options):
    with open_loader(path, **options) as loader:
        return joined(islice(loader.batches(start), count))


def numbers(images: np.ndarray) -> list[int]:
    return images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize(("min_images", "strength", "world_size", "threads"), [
    (0, 0.3, 2, 1), (5, 0.0, 3, 4), (0, 0.0, 1, 2)
])  # fmt: skip
def test_batches_are_those_of_the_plainest_loader(
    tmp_path, monkeypatch, min_images, strength, world_size, threads
) -> None:
    """From any update on. The last image, larger than the set's, is resized."""
    monkeypatch.setattr(loader_module, "_ROWS_PER_TASK", 2)
    pixels = [*np.random.default_rng(0).integers(0, 256, (25, 12, 16, 3), np.uint8)]
    pixels[24] = pixels[24].repeat(2, axis=0).repeat(2, axis=1)
    owner = np.repeat(np.arange(5), [3, 4, 5, 6, 7])
    encoded = [cv2.imencode(".png", image[..., ::-1])[1].tobytes() for image in pixels]
    seed, size, rank = 7, 3, world_size - 1
    changes: dict[str, Any] = dict.fromkeys(CHANGES_OF_FACES, strength)
    images, labels = load(
        pack_set(tmp_path, encoded, owner.tolist(), (12, 16)), 6, start=1, batch_size=size,
        rank=rank, world_size=world_size, seed=seed, min_images=min_images,
        threads=threads, **changes,
    )  # fmt: skip
    assert images.dtype == np.uint8 and labels.dtype == np.int64
    change = Augmentation({**changes, "mirror": 0.5})
    chosen = np.flatnonzero(np.bincount(owner)[owner] >= min_images)
    classes = np.unique(owner[chosen])
    expected, expected_labels = [], []
    for update in range(1, 7):
        epoch, place = divmod(update, len(chosen) // (size * world_size))
        order = permuted(0, len(chosen), epoch_keys(0, seed, epoch), len(chosen))
        draws = change.draw((1, seed, update), size * world_size)
        for row in range(rank * size, (rank + 1) * size):
            index = chosen[order[place * size * world_size + row]]
            image = change.apply(fit_to(pixels[index], (12, 16), "a").copy(), draws[row])
            expected.append(image.transpose(2, 0, 1))
            expected_labels.append(np.searchsorted(classes, owner[index]))
    assert (images == np.stack(expected)).all() and labels.tolist() == expected_labels


def test_images_of_some_classes_come_once_in_order_and_unchanged(write_set, caplog) -> None:
    faces = write_set([3, 4, 5, 6, 7])
    with open_loader(faces, rank=1, world_size=2, cutout=1.0) as loader:
        batches = list(loader.images_of(1, 4))
        assert not list(loader.images_of(2, 2))
    images, labels = joined(batches)
    assert [len(batch.labels) for batch in batches] == [4, 4, 4, 3]
    assert numbers(images) == [*range(3, 18)] and (images[:, 1] == 7).all()
    assert labels.tolist() == [1] * 4 + [2] * 5 + [3] * 6
    with open_loader(faces, min_images=5) as loader:
        assert numbers(joined(loader.images_of(0, 1))[0]) == [*range(7, 12)]
    with open_loader(overwrite(write_set([2, 3], "broken"), 2, b"junk")) as loader:
        for _ in range(2):
            assert sorted(joined(loader.images_of(0, 2))[1].tolist()) == [BROKEN, 0, 1, 1, 1]
    (line,) = (line for line in caplog.messages if "skipped" in line)
    assert re.match(r"skipped a broken record: .*train\.rec: record 2", line)


def test_a_run_continues_at_its_position_and_ends_its_threads(write_set) -> None:
    """Update 2 with a global batch of 4 starts after the first 20 images of epoch 1."""
    faces, others = write_set([3, 4, 5, 6, 7]), {*threading.enumerate()}
    with open_loader(faces) as loader:
        found, _ = joined(islice(loader.batches(2, Position(epoch=1, samples=20)), 2))
        decoders = {*threading.enumerate()} - others
    assert decoders and not any(thread.is_alive() for thread in decoders)
    # Update 11 is the last of epoch 1, which has 6 updates of 4 of its 25 images.
    assert (found == load(faces, 2, 11)[0]).all()


def test_batches_in_memory() -> None:
    made = MemoryBatches(10**8, (16, 12), 8, rank=0, world_size=1, seed=3)
    first, second = islice(made.batches(), 2)
    assert first.images.shape == (8, 3, 16, 12) and first.images.dtype == np.uint8
    assert first.labels.dtype == np.int64 and (first.labels != second.labels).any()
    assert made.num_classes == 10**8 and made.updates_per_epoch == 10**8 // 8
    halves = [next(MemoryBatches(10**8, (16, 12), 4, r, 2, 3).batches(1)).labels for r in (0, 1)]
    assert (np.concatenate(halves) == second.labels).all()
