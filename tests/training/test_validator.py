from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Callable

import numpy as np
import pytest

from data.batches.image_loader import BROKEN, PADDING
from data.batches.loader import Batch
from data.batches.position import EpochPlan
from parallel.world import LoneWorld, World
from runtime.errors import DataError
from runtime.mxnet import mx
from tests.support.thread_world import run_ranks
from training.update.epoch_counts import EpochCounts
from training.validator import Validator, count


def test_counts_by_hand() -> None:
    logits = np.float32([[2, 1, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]])
    loss, correct, of_top, total = count(logits, np.array([0, 1, 0]))
    assert (correct, of_top, total) == (1, 2, 3)
    shares = np.exp(logits.astype(float))
    shares /= shares.sum(axis=1, keepdims=True)
    assert loss == pytest.approx(-np.log(shares[[0, 1, 2], [0, 1, 0]]).sum())
    # A network that tells nothing apart has no hits.
    for value in (np.nan, 0.0):
        with np.errstate(invalid="ignore"):
            assert count(np.full((3, 4), value, np.float32), np.array([0, 1, 2]))[1] == 0


class FirstPixels:
    """A network with one statistic of this rank, whose logits are the first pixels."""

    def __init__(self, rank: int, size: int) -> None:
        self.statistics = [mx.nd.array([10.0 * rank**2])]
        self._mean = sum(10.0 * other**2 for other in range(size)) / size

    def inference(self):
        # Every rank validates the network of all.
        assert self.statistics[0].asscalar() == pytest.approx(self._mean)
        return lambda images: images[:, 0, 0, :].astype("float32")


class Best:
    """A saver that notes the updates, and may have lost its file."""

    def __init__(self, saved: list[int], is_gone: bool = False) -> None:
        self.save, self.is_gone = saved.append, lambda: is_gone


def shares(rank: int, size: int, hits: int, broken: Collection[int] = ()) -> Iterator[Batch]:
    """Eleven images, the first of which are hits, cut into batches of four rows."""
    labels = np.arange(11) % 4
    images = np.zeros((11, 1, 1, 8), np.uint8)
    images[np.arange(11), 0, 0, np.where(np.arange(11) < hits, labels, 7)] = 1
    labels[[*broken]] = BROKEN
    own = np.arange(rank, 11, size)
    for start in range(0, len(own), 4):
        rows = own[start : start + 4]
        filled, padded = np.full(4, PADDING), np.zeros((4, 1, 1, 8), np.uint8)
        filled[: len(rows)], padded[: len(rows)] = labels[rows], images[rows]
        yield Batch(padded, filled)


def make(
    batches: Callable[[], Iterator[Batch]], world: World, best: Best, hits: int = 0
) -> tuple[Validator, list[dict[str, float]]]:
    """A validator after a training with so many hits, and the records of its log."""
    counts = EpochCounts(LoneWorld(), lambda: EpochPlan(num_images=80, global_batch=8))
    if hits:
        counts.add(mx.nd.array([2.0, 0, 0, 0, 0, 0, 0, 0]), mx.nd.array([hits]), 0)
    records: list[dict[str, float]] = []

    def record(update, numbers, *, target) -> None:
        records.append({"update": update, **numbers})

    network, log = FirstPixels(world.rank, world.size), SimpleNamespace(record=record)
    return Validator(network, batches, counts, world, log, best), records


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_image_counts_once_on_any_number_of_ranks(size: int, caplog) -> None:
    caplog.set_level(logging.INFO)
    saved: list[int] = []

    def validate(world):
        hits = iter((5, 9, 7))

        def batches() -> Iterator[Batch]:
            return shares(world.rank, world.size, next(hits))

        validator, records = make(batches, world, Best(saved), 3)
        for update in (10, 20, 30):
            validator.validate(update)
        return records, validator

    for records, validator in run_ranks(size, validate):
        assert [record["correct"] for record in records] == [5, 9, 7]
        assert {record["total"] for record in records} == {11}
        assert [record["best"] for record in records] == [5 / 11, 9 / 11, 9 / 11]
        assert records[0]["training_accuracy"] == 3 / 8 and records[2]["epoch"] == 3
        assert validator.export_state(30).values == {"accuracy": {"best": 9 / 11}}
    assert saved == [10] * size + [20] * size
    assert "accuracy 0.8182 (9 of 11), top-5 " in caplog.text
    assert "epoch 1: training loss 0.2500, accuracy 0.3750; validation loss " in caplog.text


@pytest.mark.parametrize("size", [1, 2])
def test_broken_images_do_not_count_and_their_number_is_said(size: int, caplog) -> None:
    caplog.set_level(logging.INFO)

    def validate(world):
        batches = partial(shares, world.rank, world.size, 5)
        validator, records = make(partial(batches, {0, 6, 7}), world, Best([]))
        validator.validate(10)
        with pytest.raises(DataError, match="none of the 11 images to validate on can be read"):
            make(partial(batches, range(11)), world, Best([]))[0].validate(10)
        return records

    for (record,) in run_ranks(size, validate):
        # Of eleven images, the first five of which are hits.
        assert (record["correct"], record["total"], record["accuracy"]) == (4, 8, 0.5)
    assert "3 of 11 images to validate on cannot be read, and do not count" in caplog.text
    # As in a run that is resumed behind its end.
    assert "epoch 1: nothing left to train on; validation loss " in caplog.text


def test_the_best_model_counts_while_its_file_is_there() -> None:
    for is_gone in (False, True):
        saved: list[int] = []
        validator, _ = make(partial(shares, 0, 1, 5), LoneWorld(), Best(saved, is_gone))
        validator.load_state(SimpleNamespace(numbers=lambda name: {"best": 0.9}))
        validator.validate(30)
        assert saved == [30] * is_gone
