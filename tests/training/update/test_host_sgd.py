"""SGD on a CPU against MXNet's own, and the look at gradients."""

from __future__ import annotations

import numpy as np
import pytest

from parallel.world import LoneWorld
from runtime.mxnet import mx
from runtime.stopwatch import COMMUNICATION, Stopwatch
from training.config.schedule import OptimizerOptions
from training.update.host_sgd import HostSGD, all_finite
from training.update.optimizer import BackboneOptimizer

SETTINGS = {"momentum": 0.9, "wd": 0.01, "learning_rate": 0.0}


def updates(rule, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Three updates of an array; returns it and its momentum after each."""
    generator = np.random.default_rng(0)
    optimizer = rule(**SETTINGS)
    # As Gluon's trainer does it for a loss that was scaled.
    optimizer.rescale_grad = 0.5
    weight = mx.nd.array(generator.normal(size=shape))
    state = optimizer.create_state_multi_precision(0, weight)
    found = []
    for lr in (0.1, 0.2, 0.05):
        optimizer.set_learning_rate(lr)
        gradient = mx.nd.array(generator.normal(size=shape))
        optimizer.update_multi_precision(0, weight, gradient, state)
        found += [weight.asnumpy().copy(), state.asnumpy().copy()]
    return found


@pytest.mark.parametrize("shape", [(1,), (64, 3, 3, 3), (513, 257)])
def test_it_does_what_mxnet_does(shape: tuple[int, ...]) -> None:
    for ours, theirs in zip(updates(HostSGD, shape), updates(mx.optimizer.SGD, shape)):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-7)


def test_many_parameters_at_once_do_as_each_by_itself() -> None:
    """Pieces of the numbers of all begin and end within arrays, and hold several."""
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=(3, size)) for size in (1, 5, 40_000, 7, 129)]
    results = []
    for at_once in (True, False):
        optimizer = HostSGD(**SETTINGS, param_idx2name={0: "a_bias", 2: "b_weight"})
        optimizer.set_learning_rate(0.1)
        optimizer.set_lr_mult({"a_bias": 3.0})
        optimizer.set_wd_mult({"b_weight": 5.0})
        columns = [[mx.nd.array(array[i]) for array in arrays] for i in range(3)]
        numbers = list(range(len(arrays)))
        for number, weight in enumerate(columns[0]):
            optimizer.create_state(number, weight)
        calls = [(numbers, *columns)] if at_once else zip(numbers, *columns)
        for call in calls:
            optimizer.update_multi_precision(*call)
        results.append([one.asnumpy() for one in (*columns[0], *columns[2])])
    for together, alone in zip(*results):
        np.testing.assert_allclose(together, alone, rtol=1e-6)


def test_one_bad_number_among_many_is_seen() -> None:
    values = np.ones(100_003, np.float32)
    # The square of 1e30 is no float32.
    for number in (1.0, np.nan, np.inf, -np.inf, 1e30):
        values[77_777] = number
        assert all_finite([mx.nd.zeros((2, 2)), mx.nd.array(values)]) == (number == 1)


def test_waiting_for_others_is_not_counted_as_the_update() -> None:
    """An update that is not queued would otherwise be the first to wait for the ranks."""

    stopwatch = Stopwatch()
    parameter = mx.gluon.Parameter("fc_weight", shape=(2,), init=mx.init.One())
    parameter.initialize()
    optimizer = BackboneOptimizer(
        OptimizerOptions(momentum=0.9, wd=0.0), {"fc_weight": parameter}, LoneWorld(),
        dtype="float32", stopwatch=stopwatch,
    )  # fmt: skip
    before: list[float] = []
    stopwatch.defer(lambda: before.append(parameter.data().asnumpy()[0]), COMMUNICATION)
    with mx.autograd.record():
        loss = parameter.data().sum()
    loss.backward()
    reduced = optimizer.reduce(0)
    optimizer.update(0, lr=0.5)
    assert before == [1.0] and parameter.data().asnumpy().tolist() == [0.5, 0.5]
    assert reduced.are_finite(())
