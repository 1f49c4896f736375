"""Choosing by the number of images: the right ones, in little memory."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from data.batches.order import epoch_keys, permuted
from data.batches.selection import Selection
from data.records import label_table
from data.records.label_table import LabelTable
from runtime.errors import DataError


class Labels:
    """A set of which only the labels are known."""

    path = "made up"

    def __init__(self, labels: Any, num_classes: int = 30) -> None:
        self._labels, self.num_classes = np.array(labels, np.int32), num_classes

    def __len__(self) -> int:
        return len(self._labels)

    def where(self, index: int) -> str:
        return f"image {index}"

    def label_table(self) -> LabelTable:
        # In pieces of several lengths, the second of which counts its classes from 3 on.
        pieces = np.split(self._labels, [0, 100, 101, 260][: len(self._labels) // 80 + 1])
        firsts = [0, 0, 3, 0, 0][: len(pieces)]
        lowered = [
            np.ascontiguousarray(np.where(piece < 0, piece, piece - first), np.int32)
            for piece, first in zip(pieces, firsts)
        ]
        loaders = [functools.partial(np.copy, piece) for piece in lowered]
        return LabelTable(loaders, [len(piece) for piece in lowered], firsts)


def select(labels: Any, *options: Any) -> Selection:
    dataset: Any = Labels(labels)
    return Selection(dataset, *options)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_table, "CHUNK", 64)


def whole(chosen: Selection, *seed: int) -> np.ndarray:
    return chosen.order(epoch_keys(*seed), 0, len(chosen))


@pytest.fixture
def labels() -> np.ndarray:
    labels = np.random.default_rng(4).integers(-1, 30, 333).astype(np.int32)
    # One class has no images at all.
    return np.where(labels == 17, 3, labels)


@pytest.mark.parametrize("min_images", [1, 10, 13])
def test_images_and_classes_by_hand(labels: np.ndarray, min_images: int, caplog) -> None:
    chosen = select(labels, min_images)
    unreadable = np.flatnonzero(labels < 0)
    said = f"made up: {len(unreadable)} of 333 records are unreadable and left out, the first is "
    assert f"{said}image {unreadable[0]}" in caplog.text
    counts = {label: int((labels == label).sum()) for label in range(30)}
    kept = [label for label in range(30) if counts[label] >= min_images]
    images = [i for i, label in enumerate(labels) if label in kept]
    assert 0 < len(kept) < 30
    assert (chosen.num_classes, len(chosen)) == (len(kept), len(images))
    numbers = [chosen.new_number(label) for label in range(30)]
    assert [numbers[label] for label in kept] == list(range(len(kept)))
    assert numbers.count(-1) == 30 - len(kept)
    dataset: Any = Labels(labels)
    for start, stop in ((0, len(kept)), (1, 3), (2, 2)):
        found = np.concatenate([*chosen.of_classes(dataset, start, stop)]).tolist()
        assert found == [image for image in images if labels[image] in kept[start:stop]]
    # The order of a list of the chosen images.
    keys = epoch_keys(1)
    expected = np.array(images)[permuted(0, len(images), keys, len(images))]
    order = chosen.order(keys, 0, len(images))
    assert order.dtype == np.int64 and (order == expected).all()
    assert (chosen.order(keys, 7, 20) == expected[7:27]).all()
    for index in range(len(labels)):
        assert chosen.following(index) == min([i for i in images if i > index] or images)


def test_everything_is_chosen_without_a_limit_and_without_looking_up_labels(labels: Any) -> None:
    nothing: Any = Labels(np.zeros(333))
    nothing.label_table = None
    chosen = Selection(nothing, 0)
    assert (len(chosen), chosen.num_classes, chosen.new_number(29)) == (333, 30, 29)
    np.testing.assert_array_equal(whole(chosen, 3), permuted(0, 333, epoch_keys(3), 333))
    assert [chosen.following(i) for i in (0, 332)] == [1, 0]
    with pytest.raises(DataError, match="made up: no identity has 99 images or more"):
        select(labels, 99)
    with pytest.raises(DataError, match="made up: no image has a readable label"):
        select(np.full(9, -1), 0, 1.0)


@pytest.mark.parametrize(("balance", "min_images"), [(0.5, 0), (1.0, 6), (1.5, 0)])
def test_images_come_by_the_size_of_their_class(
    labels: np.ndarray, balance: float, min_images: int
) -> None:
    """Each w times on average, and never 2 or more away from that."""
    labels = np.where(np.arange(len(labels)) % 3 > 1, 5, labels)
    chosen = select(labels, min_images, balance)
    sizes = np.bincount(labels[labels >= 0], minlength=30)
    is_kept = np.array([one >= 0 and chosen.new_number(one) >= 0 for one in labels.tolist()])
    weights = np.where(is_kept, 1.0 / sizes[labels] ** balance, 0.0)
    weights *= len(chosen) / weights.sum()
    assert weights.max() > 3 * weights[is_kept].min()
    total, epochs = np.zeros(len(labels)), 60
    for epoch in range(epochs):
        order = whole(chosen, epoch)
        assert order.dtype == np.int64 and len(order) == len(chosen)
        times = np.bincount(order, minlength=len(labels))
        assert (np.abs(times - weights) < 2).all() and not times[~is_kept].any()
        total += times
    # A number of hits has a variance below 1/2.
    np.testing.assert_allclose(total / epochs, weights, atol=5 * np.sqrt(0.5 / epochs))
    orders = [whole(chosen, seed).tolist() for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sum(first > second for first, second in zip(orders[0], orders[0][1:])) > 100
