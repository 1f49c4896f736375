from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from data.batches.image_loader import BROKEN, PADDING
from data.batches.loader import Batch
from data.batches.position import EpochPlan
from parallel.world import LoneWorld
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


@pytest.mark.parametrize("value", [np.nan, 0.0])
def test_a_network_that_tells_nothing_apart_has_no_hits(value: float) -> None:
    logits = np.full((3, 4), value, np.float32)
    with np.errstate(invalid="ignore"):
        assert count(logits, np.array([0, 1, 2]))[1] == 0


class FirstPixels:
    """A network without statistics, whose logits are the first pixels."""

    statistics: tuple[()] = ()

    def inference(self):
        return lambda images: images[:, 0, 0, :].astype("float32")


class Log:
    def __init__(self) -> None:
        self.records: list[dict[str, float]] = []

    def record(self, update, numbers, *, target) -> None:
        self.records.append({"update": update, **numbers})


class Best:
    """A saver that notes the updates, and may have lost its file."""

    def __init__(self, saved: list[int], is_gone: bool = False) -> None:
        self.save, self.is_gone = saved.append, lambda: is_gone


def shares(rank: int, size: int, hits: int):
    """Eleven images, the first of which are hits, cut into batches of four rows."""
    labels = np.arange(11) % 4
    images = np.zeros((11, 1, 1, 8), np.uint8)
    images[np.arange(11), 0, 0, np.where(np.arange(11) < hits, labels, 7)] = 1
    own = np.arange(rank, 11, size)
    for start in range(0, len(own), 4):
        rows = own[start : start + 4]
        filled = np.full(4, PADDING)
        filled[: len(rows)] = labels[rows]
        padded = np.zeros((4, 1, 1, 8), np.uint8)
        padded[: len(rows)] = images[rows]
        yield Batch(padded, filled)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_image_counts_once_on_any_number_of_ranks(size: int, caplog) -> None:
    caplog.set_level(logging.INFO)
    saved: list[int] = []

    def validate(world):
        hits = iter((5, 9, 7))
        log = Log()
        epoch_plan = EpochPlan(num_images=80, global_batch=8)
        epoch_counts = EpochCounts(LoneWorld(), lambda: epoch_plan)
        epoch_counts.add(mx.nd.array([2.0, 0, 0, 0, 0, 0, 0, 0]), mx.nd.array([3]), 0)
        validator = Validator(
            FirstPixels(),
            lambda: shares(world.rank, world.size, next(hits)),
            epoch_counts,
            world,
            log,
            Best(saved),
        )
        for update in (10, 20, 30):
            validator.validate(update)
        return log.records, validator

    for records, validator in run_ranks(size, validate):
        assert [record["correct"] for record in records] == [5, 9, 7]
        assert {record["total"] for record in records} == {11}
        assert [record["best"] for record in records] == [5 / 11, 9 / 11, 9 / 11]
        assert records[0]["training_accuracy"] == 3 / 8 and records[2]["epoch"] == 3
        assert validator.export_state(30).values == {"accuracy": {"best": 9 / 11}}
    assert saved == [10] * size + [20] * size
    assert "accuracy 0.8182 (9 of 11), top-5 " in caplog.text
    assert "epoch 1: training loss 0.2500, accuracy 0.3750; validation loss " in caplog.text


def with_broken(rank: int, size: int, broken: set[int]):
    """The batches of ``shares`` with some images broken, by their number."""
    own = np.arange(rank, 11, size)
    for number, batch in enumerate(shares(rank, size, 5)):
        rows = own[4 * number : 4 * number + 4]
        labels = batch.labels.copy()
        labels[: len(rows)][np.isin(rows, list(broken))] = BROKEN
        yield Batch(batch.images, labels)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_broken_images_do_not_count_and_their_number_is_said(size: int, caplog) -> None:
    def validate(world):
        log = Log()
        counts = EpochCounts(LoneWorld(), lambda: EpochPlan(num_images=80, global_batch=8))
        batches = partial(with_broken, world.rank, world.size, {0, 6, 7})
        Validator(FirstPixels(), batches, counts, world, log, Best([])).validate(10)
        return log.records

    for (record,) in run_ranks(size, validate):
        # Of eleven images, the first five of which are hits.
        assert (record["correct"], record["total"], record["accuracy"]) == (4, 8, 0.5)
    assert "3 of 11 images to validate on cannot be read, and do not count" in caplog.text


@pytest.mark.parametrize("size", [1, 2])
def test_no_readable_image_is_an_error_on_every_rank(size: int) -> None:
    def validate(world):
        counts = EpochCounts(LoneWorld(), lambda: EpochPlan(num_images=80, global_batch=8))
        batches = partial(with_broken, world.rank, world.size, set(range(11)))
        validator = Validator(FirstPixels(), batches, counts, world, Log(), Best([]))
        with pytest.raises(DataError, match="none of the 11 images to validate on can be read"):
            validator.validate(10)

    run_ranks(size, validate)


def test_a_run_that_is_resumed_behind_its_end_has_trained_on_nothing(caplog) -> None:
    caplog.set_level(logging.INFO)
    counts = EpochCounts(LoneWorld(), lambda: EpochPlan(num_images=80, global_batch=8))
    batches = partial(shares, 0, 1, 5)
    Validator(FirstPixels(), batches, counts, LoneWorld(), Log(), Best([])).validate(30)
    assert "epoch 3: nothing left to train on; validation loss " in caplog.text


@pytest.mark.parametrize("is_gone", [False, True])
def test_the_best_model_counts_while_its_file_is_there(is_gone: bool) -> None:
    saved: list[int] = []
    counts = EpochCounts(LoneWorld(), lambda: EpochPlan(num_images=80, global_batch=8))
    best = Best(saved, is_gone)
    validator = Validator(FirstPixels(), partial(shares, 0, 1, 5), counts, LoneWorld(), Log(), best)
    validator.load_state(SimpleNamespace(numbers=lambda name: {"best": 0.9}))
    validator.validate(30)
    assert saved == [30] * is_gone
