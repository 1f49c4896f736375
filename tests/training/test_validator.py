from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest

from data.batches.image_loader import BROKEN, PADDING
from data.batches.loader import Batch
from data.batches.position import EpochPlan
from parallel.world import LoneWorld, World
from runtime.errors import DataError
from runtime.mxnet import mx
from tests.support.parameters import SavedValues
from tests.support.thread_world import run_ranks
from training.update.classify_step import EpochCounts
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

    def __init__(self, world: World) -> None:
        self.statistics = [mx.nd.array([10.0 * world.rank**2])]
        self._mean = np.mean([10.0 * rank**2 for rank in range(world.size)])

    def inference(self):
        # Every rank validates the network of all.
        assert self.statistics[0].asscalar() == pytest.approx(self._mean)
        return lambda images: images[:, 0, 0, :].astype("float32")


def share(world: World, hits: int, broken=()) -> Iterator[Batch]:
    """A rank's part of eleven images, the first of which are hits, in batches of four rows."""
    numbers = np.arange(11)
    # The last row is for padding.
    labels, images = np.append(numbers % 4, PADDING), np.zeros((12, 1, 1, 8), np.uint8)
    images[numbers, 0, 0, np.where(numbers < hits, numbers % 4, 7)] = 1
    labels[[*broken]] = BROKEN
    own = numbers[world.rank :: world.size]
    rows = np.append(own, np.full(-len(own) % 4, 11)).reshape(-1, 4)
    return iter([Batch(images[four], labels[four]) for four in rows])


def make(batches, world: World, best: Any, hits: int = 0) -> tuple[Validator, list[Any]]:
    """A validator after a training with so many hits, and the records of its log."""
    counts = EpochCounts(LoneWorld(), lambda: EpochPlan(num_images=80, global_batch=8))
    if hits:
        counts.add(mx.nd.array([2.0, 0, 0, 0, 0, 0, 0, 0]), mx.nd.array([hits]), 0)
    records: list[Any] = []
    log = SimpleNamespace(record=lambda update, numbers, target: records.append(numbers))
    return Validator(FirstPixels(world), batches, counts, world, log, best), records


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_image_counts_once_on_any_number_of_ranks(size: int, caplog) -> None:
    caplog.set_level(logging.INFO)
    best = Mock()

    def validate(world):
        hits = iter((5, 9, 7))
        validator, records = make(lambda: share(world, next(hits)), world, best, 3)
        for update in (10, 20, 30):
            validator.validate(update)
        return records, validator

    for records, validator in run_ranks(size, validate):
        assert [record["correct"] for record in records] == [5, 9, 7]
        assert {record["total"] for record in records} == {11}
        assert [record["best"] for record in records] == [5 / 11, 9 / 11, 9 / 11]
        assert records[0]["training_accuracy"] == 3 / 8 and records[2]["epoch"] == 3
        assert validator.export_state(30).values == {"accuracy": {"best": 9 / 11}}
    assert best.save.mock_calls == [call(10)] * size + [call(20)] * size
    assert "accuracy 0.8182 (9 of 11), top-5 " in caplog.text
    assert "epoch 1: training loss 0.2500, accuracy 0.3750; validation loss " in caplog.text


@pytest.mark.parametrize("size", [1, 2])
def test_broken_images_do_not_count_and_their_number_is_said(size: int, caplog) -> None:
    caplog.set_level(logging.INFO)

    def validate(world):
        validator, records = make(partial(share, world, 5, {0, 6, 7}), world, Mock())
        validator.validate(10)
        with pytest.raises(DataError, match="none of the 11 images to validate on can be read"):
            make(partial(share, world, 5, range(11)), world, Mock())[0].validate(10)
        return records

    for (record,) in run_ranks(size, validate):
        # Of eleven images, the first five of which are hits.
        assert (record["correct"], record["total"], record["accuracy"]) == (4, 8, 0.5)
    assert "3 of 11 images to validate on cannot be read, and do not count" in caplog.text
    # As in a run that is resumed behind its end.
    assert "epoch 1: nothing left to train on; validation loss " in caplog.text


@pytest.mark.parametrize("is_gone", [False, True])
def test_the_best_model_counts_while_its_file_is_there(is_gone: bool) -> None:
    best = Mock(**{"is_gone.return_value": is_gone})
    validator, _ = make(partial(share, LoneWorld(), 5), LoneWorld(), best)
    validator.load_state(SavedValues(accuracy={"best": 0.9}))
    validator.validate(30)
    assert best.save.mock_calls == [call(30)] * is_gone
