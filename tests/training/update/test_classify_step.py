from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from backbones.classifiers import Normalization
from backbones.classifiers.classifier import Classifier
from backbones.options import ClassifierOptions
from data.batches.loader import Batch
from data.batches.position import EpochPlan
from parallel.world import LoneWorld
from runtime.mxnet import mx
from runtime.stopwatch import COMMUNICATION, Stopwatch
from tests.support.thread_world import run_ranks
from training.config.images import LossOptions
from training.config.schedule import OptimizerOptions
from training.update.classify_step import ClassifyStep, EpochCounts, SoftTargets
from training.update.finite_guard import FiniteGuard, NonFiniteError
from training.update.optimizer import BackboneOptimizer

SIZE, CLASSES = 24, 5
RANDOM = np.random.default_rng(2)
IMAGES = RANDOM.integers(0, 256, (SIZE, 1, 16, 16), np.uint8)
LABELS = RANDOM.integers(0, CLASSES, SIZE)
BATCH = Batch(IMAGES, LABELS)


def make_step(world, contributors=None, **options) -> ClassifyStep:
    classifier = Classifier.create(
        ClassifierOptions(model="LeNet"), classes=CLASSES, image_shape=(1, 16, 16),
        normalization=Normalization((0.5,), (0.25,)), seed=3,
    )  # fmt: skip
    rule = OptimizerOptions(momentum=0.9, wd=1e-3)
    optimizer = BackboneOptimizer(rule, classifier.parameters, world, dtype="float32")
    optimizer.contributors = contributors or world.size
    counts = EpochCounts(world, lambda: EpochPlan(num_images=3 * SIZE, global_batch=SIZE))
    targets = SoftTargets(LossOptions(**{"label_smoothing": 0.1, **options}), CLASSES, seed=1)
    parts = {"stopwatch": Stopwatch(), "guard": FiniteGuard()}
    return ClassifyStep(classifier, optimizer, targets, counts, **parts)


def trained_by(step: ClassifyStep) -> list[Any]:
    return [one for one in step.classifier.parameters.values() if one.grad_req != "null"]


def train(world):
    """Three updates; returns losses, weights and counts."""
    step = make_step(world)
    own = slice(*(rank * SIZE // world.size for rank in (world.rank, world.rank + 1)))
    part = Batch(IMAGES[own], LABELS[own])
    losses = [float(step(part, update, 0.05).asscalar()) for update in range(3)]
    weights = {name: p.data().asnumpy() for name, p in step.classifier.parameters.items()}
    return losses, weights, step._epoch_counts.averages()


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_compute_what_one_process_does(size: int) -> None:
    expected_losses, expected, expected_counts = train(LoneWorld())
    assert expected_counts["total"] == 3 * SIZE
    for losses, weights, counts in run_ranks(size, train):
        np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
        assert counts["mean_loss"] == pytest.approx(expected_counts["mean_loss"], rel=1e-5)
        assert (counts["correct"], counts["total"]) == (expected_counts["correct"], 3 * SIZE)
        for name, weight in weights.items():
            np.testing.assert_allclose(weight, expected[name], rtol=1e-4, atol=1e-6)


def test_a_step_moves_weights_against_their_gradient_by_lr() -> None:
    step = make_step(LoneWorld())
    step.classifier(mx.nd.array(IMAGES, dtype="uint8"))
    before = [parameter.data().asnumpy() for parameter in trained_by(step)]
    loss = step(BATCH, 0, 0.25).asscalar()
    for old, parameter in zip(before, trained_by(step)):
        new, gradient = parameter.data().asnumpy(), parameter.grad().asnumpy()
        assert np.abs(gradient).max() > 0, parameter.name
        decay = 1e-3 * parameter.wd_mult * old
        np.testing.assert_allclose(new, old - 0.25 * (gradient + decay), atol=1e-6)
    assert {parameter.wd_mult for parameter in trained_by(step)} == {0.0, 1.0}
    # As in BSP over servers: each worker computes addends, and reports the loss of its own images.
    of_four = make_step(LoneWorld(), contributors=4)
    assert of_four(BATCH, 0, 0.0).asscalar() == pytest.approx(loss)
    for whole, part in zip(trained_by(step), trained_by(of_four)):
        expected = whole.grad().asnumpy() / 4
        np.testing.assert_allclose(part.grad().asnumpy(), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("mixup", [0.0, 0.4])
def test_the_loss_is_the_cross_entropy_of_smoothed_or_mixed_targets(mixup: float) -> None:
    smoothing = 0.0 if mixup else 0.1
    step = make_step(LoneWorld(), mixup=mixup, label_smoothing=smoothing)
    share = step._targets.share(0) if mixup else 1.0
    assert 0.5 <= share <= 1 and (share < 1) == (mixup > 0)
    images = IMAGES.astype(np.float32)
    logits = step.classifier(mx.nd.array(share * images + (1 - share) * images[::-1])).asnumpy()
    log_shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    rows = np.arange(SIZE)
    of_label = share * log_shares[rows, LABELS] + (1 - share) * log_shares[rows, LABELS[::-1]]
    expected = -((1 - smoothing) * of_label + smoothing * log_shares.mean(axis=1)).mean()
    assert step(BATCH, 0, 0.0).asscalar() == pytest.approx(expected, rel=1e-4 if mixup else 1e-5)


@pytest.mark.parametrize("size", [1, 2])
def test_counts_of_all_ranks_begin_anew_with_each_epoch(size: int) -> None:
    def count(world):
        world.allreduce = Mock(side_effect=world.allreduce)
        epoch_counts = EpochCounts(world, lambda: EpochPlan(num_images=16, global_batch=8))
        assert np.isnan(epoch_counts.averages()["accuracy"])
        own = 8 // size
        for update, hits in enumerate((1, 2, 4)):
            losses = mx.nd.array([0.5 / size] + [0.0] * (own - 1))
            mean = epoch_counts.add(losses, mx.nd.array([hits / size]), update)
            assert mean.asnumpy().tolist() == [0.5 / 8]
        assert epoch_counts.averages() == {
            "mean_loss": 0.5 / 8, "accuracy": 0.5, "correct": 4, "total": 8,
        }  # fmt: skip
        assert epoch_counts.epochs(3) == 1.5
        # Nothing else orders two updates: Horovod refuses a name that is under way already.
        assert len({id(call.args[0]) for call in world.allreduce.mock_calls}) == 1

    run_ranks(size, count)


@pytest.mark.parametrize("is_last", [True, False])
def test_a_loss_that_is_not_finite_ends_the_run(is_last: bool, monkeypatch) -> None:
    step, parts = make_step(LoneWorld()), []
    finish = step._guard.finish
    monkeypatch.setattr(
        step._guard, "finish", lambda: parts.append(step._stopwatch.current) or finish()
    )
    step.classifier.parameters["fc_output_weight"].data()[:] = np.nan
    with pytest.raises(NonFiniteError, match="update 1: the loss is nan"):
        # Judged when the next update is queued, or nothing follows.
        step(BATCH, 0, 0.1)
        step.finish() if is_last else step(BATCH, 1, 0.1)
    # A rank that judges an update waits for others, as the watchdog understands it.
    assert parts == [COMMUNICATION] * 2
