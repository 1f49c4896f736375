from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from typing_extensions import override

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
from training.update.classify_step import ClassifyStep
from training.update.epoch_counts import EpochCounts
from training.update.finite_guard import FiniteGuard, NonFiniteError
from training.update.optimizer import BackboneOptimizer
from training.update.soft_targets import SoftTargets

SIZE, CLASSES = 24, 5


def batch() -> Batch:
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (SIZE, 1, 16, 16), np.uint8)
    return Batch(images, rng.integers(0, CLASSES, SIZE))


def make_step(world, contributors=None, **options) -> tuple[ClassifyStep, Classifier, EpochCounts]:
    classifier = Classifier.create(
        ClassifierOptions(model="LeNet"),
        classes=CLASSES,
        image_shape=(1, 16, 16),
        normalization=Normalization((0.5,), (0.25,)),
        seed=3,
    )
    optimizer = BackboneOptimizer(
        OptimizerOptions(momentum=0.9, wd=1e-3), classifier.parameters, world, dtype="float32"
    )
    optimizer.contributors = contributors or world.size
    epoch_counts = EpochCounts(world, lambda: EpochPlan(num_images=3 * SIZE, global_batch=SIZE))
    step = ClassifyStep(
        classifier,
        optimizer,
        SoftTargets(LossOptions(**{"label_smoothing": 0.1, **options}), CLASSES, seed=1),
        epoch_counts,
        stopwatch=Stopwatch(),
        guard=FiniteGuard(),
    )
    return step, classifier, epoch_counts


def train(world, **options):
    """Three updates; returns losses, weights and counts."""
    step, classifier, epoch_counts = make_step(world, **options)
    own = SIZE // world.size
    rows = slice(world.rank * own, (world.rank + 1) * own)
    whole = batch()
    part = Batch(whole.images[rows], whole.labels[rows])
    losses = [float(step(part, update, 0.05).asscalar()) for update in range(3)]
    weights = {name: p.data().asnumpy() for name, p in classifier.parameters.items()}
    return losses, weights, epoch_counts.counts()


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_compute_what_one_process_does(size: int) -> None:
    (alone,) = run_ranks(1, train)
    for losses, weights, counts in run_ranks(size, train):
        np.testing.assert_allclose(losses, alone[0], rtol=1e-5)
        assert (
            (counts.correct, counts.total)
            == (alone[2].correct, alone[2].total)
            == (
                alone[2].correct,
                3 * SIZE,
            )
        )
        for name, weight in weights.items():
            np.testing.assert_allclose(weight, alone[1][name], rtol=1e-4, atol=1e-6)


def test_a_step_moves_weights_against_their_gradient_by_lr() -> None:
    def first_step(world):
        step, classifier, _ = make_step(world)
        trained = {n: p for n, p in classifier.parameters.items() if p.grad_req != "null"}
        classifier(mx.nd.array(batch().images, dtype="uint8"))
        before = {name: parameter.data().asnumpy() for name, parameter in trained.items()}
        step(batch(), 0, 0.25)
        return {
            name: (before[name], parameter.data().asnumpy(), parameter.grad().asnumpy(), parameter)
            for name, parameter in trained.items()
        }

    (found,) = run_ranks(1, first_step)
    for name, (before, after, gradient, parameter) in found.items():
        assert np.abs(gradient).max() > 0, name
        decay = 1e-3 * parameter.wd_mult * before
        np.testing.assert_allclose(after, before - 0.25 * (gradient + decay), atol=1e-6)
    assert {parameter.wd_mult for *_, parameter in found.values()} == {0.0, 1.0}


def test_workers_alone_contribute_to_a_larger_update() -> None:
    """As in BSP over servers: each computes addends, and reports the loss of its own images."""

    def gradient(world, contributors):
        step, classifier, _ = make_step(world, contributors)
        loss = step(batch(), 0, 0.0).asscalar()
        trained = [p for p in classifier.parameters.values() if p.grad_req != "null"]
        return loss, [p.grad().asnumpy() for p in trained]

    ((loss, alone),) = run_ranks(1, lambda world: gradient(world, 1))
    ((same_loss, quarter),) = run_ranks(1, lambda world: gradient(world, 4))
    assert loss == pytest.approx(same_loss)
    for whole, part in zip(alone, quarter):
        np.testing.assert_allclose(part, whole / 4, rtol=1e-5, atol=1e-8)


def test_the_loss_is_the_smoothed_cross_entropy() -> None:
    def first_loss(world):
        step, classifier, _ = make_step(world)
        logits = classifier(mx.nd.array(batch().images, dtype="uint8")).asnumpy()
        return float(step(batch(), 0, 0.0).asscalar()), logits

    ((loss, logits),) = run_ranks(1, first_loss)
    log_shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    of_label = log_shares[np.arange(SIZE), batch().labels]
    expected = -(0.9 * of_label + 0.1 * log_shares.mean(axis=1)).mean()
    assert loss == pytest.approx(expected, rel=1e-5)


def test_mixup_mixes_images_and_targets_alike() -> None:
    def first_loss(world):
        step, classifier, _ = make_step(world, mixup=0.4, label_smoothing=0.0)
        share = step._targets.share(0)
        images = batch().images.astype(np.float32)
        mixed = share * images + (1 - share) * images[::-1]
        logits = classifier(mx.nd.array(mixed)).asnumpy()
        return share, float(step(batch(), 0, 0.0).asscalar()), logits

    ((share, loss, logits),) = run_ranks(1, first_loss)
    assert 0.5 <= share < 1
    log_shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    labels, rows = batch().labels, np.arange(SIZE)
    expected = share * log_shares[rows, labels] + (1 - share) * log_shares[rows, labels[::-1]]
    assert loss == pytest.approx(-expected.mean(), rel=1e-4)


def test_two_updates_reduce_their_counts_in_one_array() -> None:
    """Nothing else orders the two: Horovod refuses a name that is under way already."""

    class Recorder(LoneWorld):
        arrays: list[Any] = []

        @override
        def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
            self.arrays.append(array)
            return array

    world = Recorder()
    epoch_counts = EpochCounts(world, lambda: EpochPlan(num_images=16, global_batch=4))
    ones = mx.nd.ones(4, ctx=mx.cpu(1)), mx.nd.ones(1, ctx=mx.cpu(1))
    means = [epoch_counts.add(number * ones[0], ones[1], number) for number in (1, 2, 3)]
    first, second, third = world.arrays
    assert first is second is third
    assert [float(mean.asscalar()) for mean in means] == [1, 2, 3]
    assert epoch_counts.counts() == (24, 3, 12)


@pytest.mark.parametrize("size", [1, 2])
def test_counts_of_all_ranks_begin_anew_with_each_epoch(size: int) -> None:
    def count(world):
        epoch_counts = EpochCounts(world, lambda: EpochPlan(num_images=16, global_batch=8))
        assert np.isnan(epoch_counts.counts().accuracy)
        own = 8 // size
        for update, hits in enumerate((1, 2, 4)):
            losses = mx.nd.array([0.5 / size] + [0.0] * (own - 1))
            mean = epoch_counts.add(losses, mx.nd.array([hits / size]), update)
            assert mean.asnumpy().tolist() == [0.5 / 8]
        assert epoch_counts.counts() == (0.5, 4, 8)
        assert epoch_counts.averages() == {
            "mean_loss": 0.5 / 8, "accuracy": 0.5, "correct": 4, "total": 8,
        }  # fmt: skip
        assert epoch_counts.epochs(3) == 1.5

    run_ranks(size, count)


@pytest.mark.parametrize("is_last", [True, False])
def test_a_loss_that_is_not_finite_ends_the_run(is_last: bool) -> None:
    def diverge(world):
        step, classifier, _ = make_step(world)
        classifier.parameters["fc_output_weight"].data()[:] = np.nan
        with pytest.raises(NonFiniteError, match="update 1: the loss is nan"):
            # Judged when the next update is queued, or nothing follows.
            step(batch(), 0, 0.1)
            step.finish() if is_last else step(batch(), 1, 0.1)

    run_ranks(1, diverge)


def test_a_rank_that_judges_an_update_waits_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the watchdog understands it, which asks for the part."""

    def parts(world):
        step, _, _ = make_step(world)
        found: list[str] = []
        monkeypatch.setattr(step._guard, "finish", lambda: found.append(step._stopwatch.current))
        step(batch(), 0, 0.1)
        step.finish()
        return found

    assert run_ranks(1, parts) == [[COMMUNICATION] * 2]
