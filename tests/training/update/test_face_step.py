"""The parts of an update are its whole time."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from backbones import layers
from backbones.model import Backbone
from backbones.options import BackboneOptions
from data.batches.face_loader import Batch
from parallel.world import TimedWorld
from partial_fc.head import PartialFC
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from runtime.mxnet import mx
from runtime.stopwatch import BACKBONE, COMMUNICATION, HEAD, Stopwatch
from tests.support.thread_world import run_ranks
from training.config.schedule import OptimizerOptions
from training.loop import Hooks, Updates, fit
from training.update.face_step import FaceStep
from training.update.finite_guard import FiniteGuard, NonFiniteError
from training.update.optimizer import BackboneOptimizer

BATCH, CLASSES, EMBEDDING, SIZE = 16, 20_000, 32, 32


def make_step(world, stopwatch, classes=CLASSES, **options):
    x = layers.relu(layers.convolution(layers.pixels("float32"), "conv0", 16, kernel=3), "relu0")
    x = layers.relu(layers.convolution(x, "conv1", 16, kernel=3, stride=2), "relu1")
    symbol = mx.sym.FullyConnected(x, num_hidden=EMBEDDING, name="fc1")
    shapes = dict(zip(symbol.list_arguments(), symbol.infer_shape(data=(1, 3, SIZE, SIZE))[0]))
    del shapes["data"]
    rng = np.random.default_rng(0)
    weights = {name: mx.nd.array(rng.normal(size=shape) * 0.1) for name, shape in shapes.items()}
    backbone = Backbone(symbol, symbol, weights, mx.cpu())
    backbone.hybridize()
    timed_world = TimedWorld(world, stopwatch)
    head = PartialFC.create(
        HeadOptions(scale=16.0), (classes, EMBEDDING), timed_world, mx.cpu(),
        optimizer=SGD(momentum=0.9, weight_decay=0.0), seed=3,
    )  # fmt: skip
    optimizer = BackboneOptimizer(
        OptimizerOptions(momentum=0.9, wd=0.0), backbone.parameters, timed_world, dtype="float32"
    )
    options = {"center_lr_factor": 1.0, **options}
    return FaceStep(backbone, head, optimizer, stopwatch=stopwatch, **options)


def time_updates(world):
    stopwatch = Stopwatch()
    step = make_step(world, stopwatch)
    rng = np.random.default_rng(1)
    images = rng.integers(256, size=(BATCH, 3, SIZE, SIZE), dtype=np.uint8)
    batch = Batch(images, rng.integers(CLASSES, size=BATCH))
    step(batch, 0, 0.1)
    mx.nd.waitall()
    stopwatch.lap()
    start = time.perf_counter()
    for update in range(1, 6):
        step(batch, update, 0.1)
    mx.nd.waitall()
    return stopwatch.lap(), time.perf_counter() - start


def one_update(spoiled: bool = False, **options):
    """Weights with their gradients, and centers, before and after one update at lr 0.5."""

    def update(world):
        step = make_step(world, Stopwatch(), classes=40, **options)
        trained = {n: p for n, p in step._backbone.parameters.items() if p.grad_req != "null"}
        images = np.random.default_rng(1).integers(256, size=(BATCH, 3, SIZE, SIZE), dtype=np.uint8)
        batch = Batch(images, np.arange(BATCH))
        if spoiled:
            reduce, odd = step._optimizer.reduce, {"are_finite": lambda numbers: False}
            step._optimizer.reduce = lambda update: reduce(update)._replace(**odd)
        centers = step._head.rows.export()["centers"].copy()
        before = {name: parameter.data().asnumpy() for name, parameter in trained.items()}
        step(batch, 0, 0.5)
        step.finish()
        weights = [
            (before[name], parameter.data().asnumpy(), parameter.grad().asnumpy())
            for name, parameter in trained.items()
        ]
        return weights, centers, step._head.rows.export()["centers"]

    return run_ranks(1, update)[0]


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_a_step_moves_weights_by_lr_and_centers_by_their_part_of_it(on_nan: str) -> None:
    weights, before, after = one_update(guard=FiniteGuard(on_nan))
    for old, new, gradient in weights:
        assert np.abs(gradient).max() > 0
        np.testing.assert_allclose(new, old - 0.5 * gradient, rtol=1e-5, atol=1e-6)
    moved = after - before
    assert np.abs(moved).max() > 0
    _, _, faster = one_update(center_lr_factor=2.0, guard=FiniteGuard(on_nan))
    np.testing.assert_allclose(faster - before, 2 * moved, rtol=1e-4, atol=1e-6)


def test_a_skipped_update_leaves_everything() -> None:
    weights, before, after = one_update(spoiled=True, guard=FiniteGuard("skip"))
    assert all((old == new).all() for old, new, _ in weights) and (before == after).all()
    with pytest.raises(NonFiniteError, match="update 1: a gradient of the backbone is not finite"):
        one_update(spoiled=True)


def test_the_next_sample_is_drawn_while_an_update_computes() -> None:
    def train(world):
        step, drawn = make_step(world, Stopwatch(), classes=40, guard=FiniteGuard("stop")), []
        draw = step._head._sampler.sample
        step._head._sampler.sample = lambda *labels: drawn.append(labels[-1]) or draw(*labels)
        images = np.zeros((BATCH, 3, SIZE, SIZE), dtype=np.uint8)
        seen = []
        log = SimpleNamespace(
            start=lambda *_: None, reports=lambda _: False, stopwatch=Stopwatch(),
            update=lambda *_, **__: seen.append(list(drawn)), end_updates=lambda: None,
        )  # fmt: skip
        batches = iter([Batch(images, np.arange(BATCH))] * 4)
        fit(step, batches, Updates(SimpleNamespace(lr_at=lambda _: 0.1), 4, BATCH), log, Hooks())
        return seen

    assert run_ranks(1, train)[0] == [[0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_an_update_is_queued_before_the_one_before_it_is_judged() -> None:
    """Whoever waits for that one waits for other ranks, as the watchdog understands it."""
    events: list[str] = []
    stopwatch = Stopwatch()

    class Guard(FiniteGuard):
        def finish(self) -> None:
            events.append(stopwatch.current)
            super().finish()

    def updates(world):
        step = make_step(world, stopwatch, classes=40, guard=Guard())
        update = step._optimizer.update
        step._optimizer.update = lambda number, lr: (update(number, lr), events.append("queued"))
        images = np.zeros((BATCH, 3, SIZE, SIZE), dtype=np.uint8)
        for number in range(2):
            step(Batch(images, np.arange(BATCH)), number, 0.1)
        step.finish()

    run_ranks(1, updates)
    assert events == ["queued", COMMUNICATION, "queued", COMMUNICATION, COMMUNICATION]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_parts_of_an_update_are_its_whole_time(ranks) -> None:
    for seconds, whole in run_ranks(ranks, time_updates):
        assert seconds[BACKBONE] > 0.02 * whole and seconds[HEAD] > 0.02 * whole
        assert 0.9 * whole < sum(seconds.values()) <= whole


def test_the_marker_of_the_gradients_is_of_the_layer_that_comes_last() -> None:
    """``allreduce_all`` takes the first array for the one that the backward pass makes last."""
    symbol = layers.convolution(layers.pixels("float32"), "conv0", 16, kernel=3)
    first = next(iter(name for name in symbol.list_arguments() if name != "data"))
    assert first == "conv0_weight"
    backbone = Backbone.create(BackboneOptions(network="tiny", embedding_size=8))
    trained = [name for name, value in backbone.parameters.items() if value.grad_req != "null"]
    assert trained[0] == "conv0_weight"
