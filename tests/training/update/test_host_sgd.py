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


@pytest.mark.parametrize("at_once", [True, False])
def test_it_does_what_mxnet_does(at_once: bool) -> None:
    """Pieces of the numbers of all arrays begin and end within arrays, and hold several."""
    generator = np.random.default_rng(0)
    shapes = [(1,), (64, 3, 3, 3), (5,), (513, 77), (7,), (129,)]
    values = [[generator.normal(size=shape) for shape in shapes] for _ in range(4)]
    results = []
    for rule in (HostSGD, mx.optimizer.SGD):
        optimizer = rule(**SETTINGS, param_idx2name={0: "a_bias", 2: "b_weight"})
        # As Gluon's trainer does it for a loss that was scaled.
        optimizer.rescale_grad = 0.5
        optimizer.set_lr_mult({"a_bias": 3.0})
        optimizer.set_wd_mult({"b_weight": 5.0})
        weights = [mx.nd.array(value) for value in values[0]]
        numbers = list(range(len(weights)))
        states = [optimizer.create_state_multi_precision(n, weights[n]) for n in numbers]
        for lr, gradients in zip((0.1, 0.2, 0.05), values[1:]):
            optimizer.set_learning_rate(lr)
            columns = (numbers, weights, list(map(mx.nd.array, gradients)), states)
            for call in [columns] if at_once and rule is HostSGD else zip(*columns):
                optimizer.update_multi_precision(*call)
        results.append([one.asnumpy() for one in (*weights, *states)])
    for ours, theirs in zip(*results):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-7)


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
