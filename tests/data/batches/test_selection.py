"""Choosing by the number of images: the right ones, in little memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.batches import selection
from data.batches.selection import Selection
from data.records.record_set import RecordSet
from data.records.writer import RecordWriter
from runtime.errors import DataError


class Labels:
    """A set of which only the labels are known."""

    path = "made up"

    def __init__(self, labels: Any, num_classes: int) -> None:
        self._labels = np.array(labels, np.int32)
        self.num_classes = num_classes

    def __len__(self) -> int:
        return len(self._labels)

    def labels(self) -> np.ndarray:
        return self._labels


def set_of(labels: np.ndarray, num_classes: int) -> Any:
    return Labels(labels, num_classes)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_CHUNK", 64)


@pytest.fixture
def labels() -> np.ndarray:
    labels = np.random.default_rng(4).integers(-1, 30, 333).astype(np.int32)
    # One class has no images at all.
    return np.where(labels == 17, 3, labels)


@pytest.mark.parametrize("min_images", [1, 10, 13])
def test_images_and_classes_by_hand(labels: np.ndarray, min_images: int) -> None:
    chosen = Selection(set_of(labels, 30), min_images)
    counts = {label: int((labels == label).sum()) for label in range(30)}
    kept = [label for label in range(30) if counts[label] >= min_images]
    images = [i for i, label in enumerate(labels) if label in kept]
    assert 0 < len(kept) < 30
    assert (chosen.num_classes, len(chosen)) == (len(kept), len(images))
    assert [chosen.classes[label] for label in kept] == list(range(len(kept)))
    assert (chosen.classes < 0).sum() == 30 - len(kept)
    order = chosen.shuffled(np.random.default_rng(1))
    assert order.dtype == np.int32
    # The same order as that of a shuffled list of the chosen images.
    expected = np.array(images, np.int32)
    np.random.default_rng(1).shuffle(expected)
    assert (order == expected).all()
    for index in range(len(labels)):
        assert chosen.following(index) == min([i for i in images if i > index] or images)


def test_everything_is_chosen_without_a_limit(labels: np.ndarray) -> None:
    chosen = Selection(set_of(labels, 30), 0)
    assert (len(chosen), chosen.num_classes) == (333, 30)
    assert sorted(chosen.shuffled(np.random.default_rng(0))) == list(range(333))
    assert [chosen.following(i) for i in (0, 332)] == [1, 0]


def test_no_identity_has_as_many_images(labels: np.ndarray) -> None:
    with pytest.raises(DataError, match="made up: no identity has 99 images or more"):
        Selection(set_of(labels, 30), 99)


@pytest.mark.parametrize("min_images", [0, 10])
def test_a_run_keeps_at_most_16_bytes_per_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, min_images: int
) -> None:
    monkeypatch.setattr(selection, "_CHUNK", 1 << 10)
    images = 100_000
    with RecordWriter(tmp_path, image_size=(16, 16)) as writer:
        for number in range(images):
            writer.write(b"tiny", number // 100)
    RecordSet(tmp_path).labels()
    tracemalloc.start()
    try:
        dataset = RecordSet(tmp_path)
        chosen = Selection(dataset, min_images)
        orders = [chosen.shuffled(np.random.default_rng(epoch)) for epoch in range(2)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(order) for order in orders] == [images, images]
    mapped = (tmp_path / "train.idx.cache").stat().st_size
    if min_images:
        # The memory of the labels is free before the orders are made.
        assert chosen._bits is not None and chosen._bits.nbytes == images // 8
    assert peak + mapped <= 16 * images


@pytest.mark.parametrize("balance", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("min_images", [0, 6])
def test_images_come_by_the_size_of_their_class(
    labels: np.ndarray, balance: float, min_images: int
) -> None:
    """Each w times on average, and never 2 or more away from that."""
    labels = np.where(np.arange(len(labels)) % 3 > 1, 5, labels)
    chosen = Selection(set_of(labels, 30), min_images, balance)
    sizes = np.bincount(labels[labels >= 0], minlength=30)
    is_kept = (labels >= 0) & (chosen.classes[labels] >= 0)
    weights = np.where(is_kept, 1.0 / sizes[labels] ** balance, 0.0)
    weights *= len(chosen) / weights.sum()
    assert weights.max() > 3 * weights[is_kept].min()
    total, epochs = np.zeros(len(labels)), 400
    for epoch in range(epochs):
        order = chosen.shuffled(np.random.default_rng(epoch))
        assert order.dtype == np.int32 and len(order) == len(chosen)
        times = np.bincount(order, minlength=len(labels))
        assert (np.abs(times - weights) < 2).all() and not times[~is_kept].any()
        total += times
    # A number of hits has a variance below 1/2.
    np.testing.assert_allclose(total / epochs, weights, atol=5 * np.sqrt(0.5 / epochs))


def test_a_drawn_order_is_mixed_and_follows_its_generator(labels: np.ndarray) -> None:
    chosen = Selection(set_of(labels, 30), 0, 1.0)
    orders = [chosen.shuffled(np.random.default_rng(seed)).tolist() for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sum(first > second for first, second in zip(orders[0], orders[0][1:])) > 100


def test_no_balance_looks_up_no_labels_and_is_the_order_without() -> None:
    nothing: Any = Labels(np.zeros(50), 30)
    nothing.labels = None
    for options in ((), (0.0,)):
        order = Selection(nothing, 0, *options).shuffled(np.random.default_rng(3))
        expected = np.arange(50, dtype=np.int32)
        np.random.default_rng(3).shuffle(expected)
        np.testing.assert_array_equal(order, expected)


def test_a_set_without_readable_labels_cannot_be_balanced() -> None:
    with pytest.raises(DataError, match="made up: no image has a readable label"):
        Selection(set_of(np.full(9, -1), 3), 0, 1.0)
