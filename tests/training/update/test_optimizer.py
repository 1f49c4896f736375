"""The backbone's optimizer: sums over the ranks, its rule, decay by ``wd_mult``, the loss scale.

And SGD on a CPU against MXNet's own, with its look at gradients.
"""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from parallel.world import LoneWorld
from runtime.mxnet import mx
from runtime.stopwatch import COMMUNICATION, Stopwatch
from tests.support.parameters import make_parameters
from tests.support.thread_world import run_ranks
from training.config.faces import FaceOptimizerOptions
from training.update.host_sgd import HostSGD, all_finite
from training.update.optimizer import BackboneOptimizer

HOST, DEVICE = mx.cpu(), mx.cpu(1)
TWOS = dict.fromkeys(("fc_bias", "fc_weight"), np.float32([2, 2]))


def make(name="sgd", world=None, device=HOST, **given):
    """An optimizer of parameters that are 2, with decay 0.1."""
    options = FaceOptimizerOptions(momentum=0.9, wd=0.1, optimizer=name)
    parameters = make_parameters(TWOS, device)
    given = {"dtype": "float32", **given}
    return parameters, BackboneOptimizer(options, parameters, world or LoneWorld(), **given)


def train(parameters, optimizer, updates, factor=1.0):
    """Updates with gradients of factor * sum of all numbers, and learning rate 0.5."""
    for update in range(updates):
        with mx.autograd.record():
            total = sum(value.data().sum() for value in parameters.values())
            loss = optimizer.scaled(factor * total)
        loss.backward()
        optimizer.reduce(update)
        optimizer.update(update, lr=0.5)
    return parameters


def trained(world, name, updates=2, factor=1.0):
    parameters, optimizer = make(name, world)
    found = train(parameters, optimizer, updates, factor)
    return {name: value.data().asnumpy() for name, value in found.items()}


def test_a_step_of_adam_is_the_learning_rate():
    # With a constant gradient both corrected moments stay g and g², so every step is 0.5.
    result = run_ranks(2, lambda world: trained(world, "adam"))[1]
    assert result["fc_bias"] == pytest.approx(2.0 - 2 * 0.5, rel=1e-4)
    # Decay is part of the gradient of the weight (2.2, then 2.15): the direction stays the same.
    first, second = 2.0 + 0.1 * 2.0, 2.0 + 0.1 * 1.5
    moment = (0.9 * 0.1 * first + 0.1 * second) / (1 - 0.9**2)
    square = (0.999 * 0.001 * first**2 + 0.001 * second**2) / (1 - 0.999**2)
    assert result["fc_weight"] == pytest.approx(1.5 - 0.5 * moment / square**0.5, rel=1e-4)
    # AdamW decays besides: each update takes 0.5 · 0.1 of the weight and 0.5: 2 → 1.4 → 0.83.
    result = trained(LoneWorld(), "adamw")
    assert result["fc_bias"] == pytest.approx(2.0 - 2 * 0.5, rel=1e-4)
    assert result["fc_weight"] == pytest.approx(0.83, rel=1e-4)
    # Tiny gradients: before moments are corrected, epsilon stands beside 0.03 of their size.
    size = (1 - 0.999) ** 0.5 * 1e-6
    for name in ("adam", "adamw"):
        result = trained(LoneWorld(), name, 1, 1e-6)
        assert result["fc_bias"] == pytest.approx(2.0 - 0.5 * size / (size + 1e-8), rel=1e-3)


@pytest.mark.parametrize("device", [HOST, DEVICE])
@pytest.mark.parametrize("bad", [np.nan, 1e30])
def test_a_bad_gradient_is_remembered_when_it_is_overwritten(bad, device):
    parameters, optimizer = make(device=device)
    gradient = parameters["fc_bias"].grad()
    gradient[:] = bad
    assert optimizer.scaled(gradient) is gradient
    reduced = optimizer.reduce(0)
    if device == HOST:
        # Which leaves weights alone that it would spoil.
        optimizer.update(0, lr=0.5)
        assert parameters["fc_bias"].data().asnumpy().tolist() == [2.0, 2.0]
    # The next backward pass comes before the step asks.
    gradient[:] = 1.0
    for one, is_finite in ((reduced, False), (optimizer.reduce(1), True)):
        assert [(n.context, n.shape) for n in one.numbers] == [(DEVICE, (1,))] * (device == DEVICE)
        assert one.are_finite([number.asscalar() for number in one.numbers]) == is_finite


@pytest.mark.parametrize(
    ("name", "dtype"), [("sgd", "float32"), ("adamw", "float32"), ("adam", "float16")]
)
def test_nothing_waits_for_a_device(name, dtype, monkeypatch):
    wait = Mock(side_effect=AssertionError("a wait"))
    stopwatch = SimpleNamespace(settle=wait)
    parameters, optimizer = make(name, device=DEVICE, dtype=dtype, stopwatch=stopwatch)
    for waits in ("asnumpy", "asscalar", "wait_to_read"):
        monkeypatch.setattr(mx.nd.NDArray, waits, wait)
    monkeypatch.setattr(mx.nd.contrib, "adamw_update", wait)
    train(parameters, optimizer, updates=3)
    monkeypatch.undo()
    assert optimizer.export_state(3).values["updates"] == 3


@pytest.mark.parametrize(("dtype", "device"), [("float32", HOST), ("float16", DEVICE)])
def test_a_parameter_that_is_not_trained_has_no_memory_and_is_not_sent(dtype, device):
    sent, world = [], LoneWorld()
    world.allreduce_all = lambda arrays, name, **more: sent.append(len(arrays))
    parameters = make_parameters(TWOS, device)
    parameters["fc_bias"].grad_req = "null"
    options = FaceOptimizerOptions(momentum=0.9, wd=0.1)
    optimizer = BackboneOptimizer(options, parameters, world, dtype=dtype)
    train(parameters, optimizer, updates=1)
    assert sent == [1]
    names = {name.partition(".")[0] for name in optimizer.export_state(1).arrays}
    assert names == {"fc_weight"}
    assert parameters["fc_bias"].data().asnumpy().tolist() == [2.0, 2.0]
    assert parameters["fc_weight"].data().asnumpy()[0] < 2.0


@pytest.mark.parametrize("at_once", [True, False])
def test_it_does_what_mxnet_does(at_once: bool):
    """Pieces of the numbers of all arrays begin and end within arrays, and hold several."""
    generator = np.random.default_rng(0)
    shapes = [(1,), (64, 3, 3, 3), (5,), (513, 77), (7,), (129,)]
    values = [[generator.normal(size=shape) for shape in shapes] for _ in range(4)]
    results = []
    for rule in (HostSGD, mx.optimizer.SGD):
        names = {0: "a_bias", 2: "b_weight"}
        optimizer = rule(momentum=0.9, wd=0.01, learning_rate=0.0, param_idx2name=names)
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


def test_one_bad_number_among_many_is_seen():
    values = np.ones(100_003, np.float32)
    # The square of 1e30 is no float32.
    for number in (1.0, np.nan, np.inf, -np.inf, 1e30):
        values[77_777] = number
        assert all_finite([mx.nd.zeros((2, 2)), mx.nd.array(values)]) == (number == 1)


def test_waiting_for_others_is_not_counted_as_the_update():
    """An update that is not queued would otherwise be the first to wait for the ranks."""
    stopwatch, before = Stopwatch(), []
    parameters, optimizer = make(stopwatch=stopwatch)
    weight = parameters["fc_bias"].data()
    stopwatch.defer(lambda: before.append(weight.asnumpy()[0]), COMMUNICATION)
    train(parameters, optimizer, updates=1)
    assert before == [2.0] and weight.asnumpy().tolist() == [1.5, 1.5]
