from __future__ import annotations

import time
from unittest.mock import Mock

import numpy as np
import pytest

from backbones.model import Backbone
from backbones.options import BackboneOptions
from data.batches.face_loader import Batch
from data.batches.position import EpochPlan
from parallel.world import LoneWorld, TimedWorld
from partial_fc.head import PartialFC
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from runtime.mxnet import mx
from runtime.stopwatch import BACKBONE, COMMUNICATION, HEAD, Stopwatch
from training.config.schedule import OptimizerOptions
from training.loop import Hooks, Updates, fit
from training.update.face_step import FaceStep
from training.update.finite_guard import FiniteGuard
from training.update.optimizer import BackboneOptimizer

SIZE, EMBEDDING = 32, 32
IMAGES = np.random.default_rng(1).integers(256, size=(16, 3, SIZE, SIZE), dtype=np.uint8)
BATCH = Batch(IMAGES, np.arange(16))


def make_step(world, stopwatch, classes=40, center_lr_factor=1.0, **options):
    chosen = BackboneOptions(network="tiny", embedding_size=EMBEDDING)
    backbone = Backbone.create(chosen, image_size=(SIZE, SIZE), seed=1)
    backbone.hybridize()
    timed_world = TimedWorld(world, stopwatch)
    head = PartialFC.create(
        HeadOptions(scale=16.0), (classes, EMBEDDING), timed_world, mx.cpu(),
        optimizer=SGD(momentum=0.9, weight_decay=0.0), seed=3,
    )  # fmt: skip
    rule = OptimizerOptions(momentum=0.9, wd=0.0)
    optimizer = BackboneOptimizer(rule, backbone.parameters, timed_world, dtype="float32")
    return FaceStep(backbone, head, optimizer, center_lr_factor, stopwatch=stopwatch, **options)


def one_update(**options):
    """Weights with their gradients, and how far centers moved, of an update at lr 0.5."""
    step = make_step(LoneWorld(), Stopwatch(), **options)
    trained = [p for p in step._backbone.parameters.values() if p.grad_req != "null"]
    centers = step._head.rows.export()["centers"].copy()
    before = [parameter.data().asnumpy() for parameter in trained]
    step(BATCH, 0, 0.5)
    step.finish()
    after = [(one.data().asnumpy(), one.grad().asnumpy()) for one in trained]
    return zip(before, after), step._head.rows.export()["centers"] - centers


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_a_step_moves_weights_by_lr_and_centers_by_their_part_of_it(on_nan: str) -> None:
    weights, moved = one_update(guard=FiniteGuard(on_nan))
    for old, (new, gradient) in weights:
        assert np.abs(gradient).max() > 0
        np.testing.assert_allclose(new, old - 0.5 * gradient, rtol=1e-5, atol=1e-6)
    assert np.abs(moved).max() > 0
    _, faster = one_update(center_lr_factor=2.0, guard=FiniteGuard(on_nan))
    np.testing.assert_allclose(faster, 2 * moved, rtol=1e-4, atol=1e-6)


def test_work_is_queued_before_the_last_update_is_judged_and_the_next_sample_is_drawn() -> None:
    """Whoever waits for that one waits for other ranks, as the watchdog understands it."""
    events: list[object] = []
    stopwatch, guard = Stopwatch(), FiniteGuard()
    step = make_step(LoneWorld(), stopwatch, guard=guard)
    update, draw, finish = step._optimizer.update, step._head._sampler.sample, guard.finish
    guard.finish = lambda: events.append(stopwatch.current) or finish()
    step._optimizer.update = lambda number, lr: (update(number, lr), events.append("queued"))
    step._head._sampler.sample = lambda *labels: events.append(labels[-1]) or draw(*labels)
    log = Mock(stopwatch=Stopwatch(), **{"reports.return_value": False})
    log.update = lambda *_, **__: events.append("done")
    updates = Updates(lambda _: 0.1, 3, len(IMAGES), EpochPlan(160, 16))
    fit(step, iter([BATCH] * 3), updates, log, Hooks())
    step.finish()
    last = ["queued", COMMUNICATION, "done"]
    assert events == [0, 1, *last, 2, *last, *last, COMMUNICATION]


def test_the_parts_of_an_update_are_its_whole_time() -> None:
    stopwatch = Stopwatch()
    step = make_step(LoneWorld(), stopwatch, classes=20_000)
    step(BATCH, 0, 0.1)
    mx.nd.waitall()
    stopwatch.lap()
    start = time.perf_counter()
    for update in range(1, 4):
        step(BATCH, update, 0.1)
    mx.nd.waitall()
    seconds, whole = stopwatch.lap(), time.perf_counter() - start
    assert seconds[BACKBONE] > 0.02 * whole and seconds[HEAD] > 0.02 * whole
    assert 0.9 * whole < sum(seconds.values()) <= whole


def test_the_marker_of_the_gradients_is_of_the_layer_that_comes_last() -> None:
    """``allreduce_all`` takes the first array for the one that the backward pass makes last."""
    parameters = Backbone.create(BackboneOptions(network="tiny", embedding_size=8)).parameters
    trained = [name for name, value in parameters.items() if value.grad_req != "null"]
    assert trained[0] == "conv0_weight"
