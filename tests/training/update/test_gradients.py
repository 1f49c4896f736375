"""Gradients: clipped by the global norm, and those that are not finite."""

from __future__ import annotations

import math
from unittest.mock import Mock, call

import numpy as np
import pytest

from runtime.errors import ConfigError
from runtime.kernels import numba
from runtime.mxnet import mx
from tests.support.parameters import make_parameters
from tests.support.thread_world import run_ranks
from tests.training.checkpoint.test_resume import Run
from training.checkpoint.reader import Checkpoint
from training.config.faces import FaceOptimizerOptions
from training.update.gradients import FiniteGuard, Reduced, clip
from training.update.mixed_precision import MixedPrecisionUpdates
from training.update.optimizer import BackboneOptimizer

HOST, DEVICE = mx.cpu(), mx.cpu(1)
SHAPES = {"conv_weight": (8, 3, 3, 3), "fc_weight": (5, 7), "fc_bias": (5,), "one_gamma": (1,)}


def arrays(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=s).astype(np.float32) for name, s in SHAPES.items()}


def norm_of(gradients) -> float:
    return math.sqrt(sum(float(np.square(g.astype(np.float64)).sum()) for g in gradients))


def clipped(values, max_norm: float, device) -> list[np.ndarray]:
    gradients = [mx.nd.array(value, ctx=device) for value in values]
    clip(gradients, max_norm)
    return [gradient.asnumpy() for gradient in gradients]


@pytest.mark.parametrize("device", [HOST, DEVICE])
def test_gradients_are_shortened_to_the_norm(device) -> None:
    values = list(arrays(0).values())
    norm = norm_of(values)
    for share in (0.03, 0.999):
        found = clipped(values, share * norm, device)
        assert norm_of(found) == pytest.approx(share * norm, rel=1e-6)
        for one, value in zip(found, values):
            np.testing.assert_allclose(one, value.astype(np.float64) * share, rtol=5e-7)
    for one, value in zip(clipped(values, norm * (1 + 1e-6), device), values):
        np.testing.assert_array_equal(one, value)
    # No gradient at all, one whose square nearly exceeds float32, and one whose square is 0.
    for value, expected in ((0.0, 0.0), (1e18, 1.0), (1e-30, 1e-30)):
        one, others = clipped([[value], [0, 0, 0]], 1.0, device)
        assert one[0] == pytest.approx(expected, rel=1e-6) and not others.any()
    for bad in (np.nan, np.inf):
        assert not np.isfinite(clipped([[1.0, bad], [1, 1, 1]], 0.5, device)[0][1])


def test_the_factor_does_not_depend_on_threads() -> None:
    values = [np.random.default_rng(2).normal(size=1_000_003).astype(np.float32)]
    found = []
    for threads in (1, numba.get_num_threads()):
        numba.set_num_threads(threads)
        found += clipped(values, 1.0, HOST)
    np.testing.assert_array_equal(*found)
    assert norm_of(found[:1]) == pytest.approx(1, rel=1e-6)


def gradients_of(update: int) -> dict[str, np.ndarray]:
    """Their norm is 1, 3.5 and 6 in turn."""
    found = arrays(10 + update)
    norm = norm_of(found.values())
    return {name: value / norm * (1 + 2.5 * update) for name, value in found.items()}


def train(world, device, **options):
    """Three updates; each rank has its part of each gradient, and begins as rank 0 does."""
    weights = {name: value + world.rank for name, value in arrays(4).items()}
    parameters = make_parameters(weights, device)
    rule = FaceOptimizerOptions(wd=0.1, **options)
    optimizer = BackboneOptimizer(rule, parameters, world, dtype="float32")
    for update in range(3):
        for whole, parameter in zip(gradients_of(update).values(), parameters.values()):
            part = whole / world.size + (world.rank - (world.size - 1) / 2) * 0.25
            parameter.grad()[:] = mx.nd.array(part)
        reduced = optimizer.reduce(update)
        optimizer.update(update, lr=0.5)
        assert reduced.are_finite([number.asscalar() for number in reduced.numbers])
    return {name: value.data().asnumpy() for name, value in parameters.items()}


def reference(max_norm: float, momentum: float) -> dict[str, np.ndarray]:
    weights = {name: value.astype(np.float64) for name, value in arrays(4).items()}
    momenta = {name: np.zeros_like(value) for name, value in weights.items()}
    for update in range(3):
        gradients = gradients_of(update)
        factor = min(1.0, max_norm / norm_of(gradients.values()))
        for name, gradient in gradients.items():
            decay = 0.1 * name.endswith("_weight") * weights[name]
            momenta[name] = momentum * momenta[name] - 0.5 * (factor * gradient + decay)
            weights[name] = weights[name] + momenta[name]
    return weights


@pytest.mark.parametrize(("device", "ranks", "momentum"), [
    (HOST, 1, 0.9), (HOST, 3, 0.0), (DEVICE, 1, 0.0), (DEVICE, 2, 0.9),
])  # fmt: skip
def test_updates_are_those_of_numpy_on_any_number_of_ranks(device, ranks, momentum) -> None:
    options = {"clip_norm": 2.0, "momentum": momentum}
    first, *others = run_ranks(ranks, lambda world: train(world, device, **options))
    for name, expected in reference(2.0, momentum).items():
        np.testing.assert_allclose(first[name], expected, rtol=2e-5, atol=2e-6)
        for other in others:
            np.testing.assert_array_equal(other[name], first[name])


FINITE = Reduced((), lambda numbers: True)
GOOD, NAN = mx.nd.array([1.0]), mx.nd.array([np.nan])


def spoil(run, what):
    """Make a rank's features or its gradient infinite in the next update."""
    head_step = run.head.step

    def step(features, *arguments, **options):
        run.head.step = head_step
        if what == "features":
            features[:] = np.inf
        result = head_step(features, *arguments, **options)
        if what == "gradient":
            result.gradient[:] = 3e38
        return result

    run.head.step = step


def arrays_of(run):
    parts = [part.export_state(0).arrays for part in run.parts.values()]
    return {(n, key): one.array.copy() for n, part in enumerate(parts) for key, one in part.items()}


@pytest.mark.parametrize(("spoiled", "loss", "what"), [
    ("features", "adaface", "the loss is nan"),
    ("gradient", "arcface", "a gradient of the backbone is not finite"),
])  # fmt: skip
def test_a_skipped_update_leaves_nothing_and_all_ranks_stop_at_it(spoiled, loss, what, tmp_path):
    def rank_main(world):
        run = Run(world, tmp_path, loss, batch_norm=True)
        run.step._guard = guard = FiniteGuard("skip")
        run.train(2)
        before = arrays_of(run)
        if world.rank == 1:
            spoil(run, spoiled)
        run.train(3)
        for name, array in arrays_of(run).items():
            np.testing.assert_array_equal(array, before[name], err_msg=str(name))
        assert guard.skipped == 1
        run.train(4)
        assert guard.skipped == 1
        run.step._guard = FiniteGuard("stop", run.saves.finish)
        run.saves.save(4)
        if world.rank == 1:
            spoil(run, spoiled)
        with pytest.raises(ConfigError) as error:
            run.train(5)
        return str(error.value)

    (message,) = set(run_ranks(2, rank_main))
    assert message.startswith(f"update 5: {what}; the last good checkpoint is {tmp_path}")
    Checkpoint(tmp_path / "checkpoints" / "update-00000004").verify(1)


def test_an_update_is_judged_when_the_next_one_is_queued_or_the_run_stops_to_look() -> None:
    judge, guard = Mock(side_effect=[True, True, False]), FiniteGuard()

    def submit(update: int) -> None:
        guard.submit(update, GOOD, Reduced((mx.nd.array([update + 0.5]),), judge))

    submit(0)
    judge.assert_not_called()
    submit(1)
    judge.assert_called_once_with([0.5])
    for _ in range(2):
        guard.finish()
        assert judge.mock_calls == [call([0.5]), call([1.5])]
    submit(2)
    with pytest.raises(ConfigError, match="update 3: a gradient .*; there is no checkpoint yet"):
        submit(3)


def test_a_loss_that_is_not_finite_is_not_told_as_an_overflow(caplog) -> None:
    """Its gradients are not finite either; with ``skip`` the loss scale stays as it is."""
    nan = mx.nd.array([np.nan], ctx=DEVICE)
    updates = MixedPrecisionUpdates(FaceOptimizerOptions(), (), DEVICE)
    assert not FiniteGuard("skip").accept(0, nan, updates.judge([nan], 0))
    assert "update 1 skipped: the loss is nan" in caplog.text and "loss scale" not in caplog.text


def test_a_run_that_only_skips_stops(caplog):
    guard = FiniteGuard("skip")
    assert not guard.accept(0, NAN, FINITE) and guard.accept(1, GOOD, FINITE)
    for update in range(2, 102):
        assert not guard.accept(update, NAN, FINITE)
    assert "update 102 skipped: the loss is nan; 101 skipped in all" in caplog.text
    with pytest.raises(ConfigError, match="update 103: .* after 100 skipped updates"):
        guard.accept(102, NAN, FINITE)
