"""The backbone's optimizer: sums over the ranks, its rule, decay by ``wd_mult``, the loss scale."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parallel.world import LoneWorld
from runtime.mxnet import mx
from tests.support.thread_world import run_ranks
from training.config.faces import FaceOptimizerOptions
from training.update.optimizer import BackboneOptimizer

HOST, DEVICE = mx.cpu(), mx.cpu(1)


def make_parameters(values, device=HOST):
    parameters = mx.gluon.ParameterDict()
    for name, value in values.items():
        parameter = parameters.get(name, shape=(2,), init=mx.init.Constant(value))
        parameter.initialize(ctx=device)
        parameter.wd_mult = float(name.endswith("_weight"))
    return parameters


def backward(parameters, factor=1.0, scaled=lambda loss: loss):
    """Gradients of factor * sum of all numbers."""
    with mx.autograd.record():
        loss = scaled(factor * sum(value.data().sum() for value in parameters.values()))
    loss.backward()


def train(world, factor, name, updates=2):
    """Updates with decay 0.1 and learning rate 0.5."""
    parameters = make_parameters({"fc_weight": 2.0, "fc_bias": 2.0})
    options = FaceOptimizerOptions(momentum=0.0, wd=0.1, optimizer=name)
    optimizer = BackboneOptimizer(options, parameters, world, dtype="float32")
    for update in range(updates):
        backward(parameters, factor)
        optimizer.reduce(update)
        optimizer.update(update, lr=0.5)
    return {name: value.data().asnumpy() for name, value in parameters.items()}


def test_a_step_of_adam_is_the_learning_rate():
    # With a constant gradient both corrected moments stay g and g², so every step is 0.5.
    result = run_ranks(2, lambda world: train(world, 1.0, "adam"))[1]
    assert result["fc_bias"] == pytest.approx(2.0 - 2 * 0.5, rel=1e-4)
    # Decay is part of the gradient of the weight (2.2, then 2.15): the direction stays the same.
    first, second = 2.0 + 0.1 * 2.0, 2.0 + 0.1 * 1.5
    moment = (0.9 * 0.1 * first + 0.1 * second) / (1 - 0.9**2)
    square = (0.999 * 0.001 * first**2 + 0.001 * second**2) / (1 - 0.999**2)
    assert result["fc_weight"] == pytest.approx(1.5 - 0.5 * moment / square**0.5, rel=1e-4)
    # AdamW decays besides: each update takes 0.5 · 0.1 of the weight and 0.5: 2 → 1.4 → 0.83.
    result = train(LoneWorld(), 1.0, "adamw")
    assert result["fc_bias"] == pytest.approx(2.0 - 2 * 0.5, rel=1e-4)
    assert result["fc_weight"] == pytest.approx(0.83, rel=1e-4)
    # Tiny gradients: before moments are corrected, epsilon stands beside 0.03 of their size.
    size = (1 - 0.999) ** 0.5 * 1e-6
    for name in ("adam", "adamw"):
        result = train(LoneWorld(), 1e-6, name, updates=1)
        assert result["fc_bias"] == pytest.approx(2.0 - 0.5 * size / (size + 1e-8), rel=1e-3)


@pytest.mark.parametrize("device", [HOST, DEVICE])
@pytest.mark.parametrize("bad", [np.nan, 1e30])
def test_a_bad_gradient_is_remembered_when_it_is_overwritten(bad, device):
    parameters = make_parameters({"fc_bias": 2.0, "fc_weight": 2.0}, device)
    options = FaceOptimizerOptions(momentum=0.9, wd=0.0)
    optimizer = BackboneOptimizer(options, parameters, LoneWorld(), dtype="float32")
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
    def fail(*arguments):
        raise AssertionError("a wait")

    parameters = make_parameters({"fc_bias": 2.0, "fc_weight": 2.0}, DEVICE)
    options = FaceOptimizerOptions(momentum=0.9, wd=0.1, optimizer=name)
    optimizer = BackboneOptimizer(
        options, parameters, LoneWorld(), dtype=dtype, stopwatch=SimpleNamespace(settle=fail)
    )
    for waits in ("asnumpy", "asscalar", "wait_to_read"):
        monkeypatch.setattr(mx.nd.NDArray, waits, fail)
    monkeypatch.setattr(mx.nd.contrib, "adamw_update", fail)
    for update in range(3):
        backward(parameters, scaled=optimizer.scaled)
        optimizer.reduce(update)
        optimizer.update(update, lr=0.5)
    monkeypatch.undo()
    assert optimizer.export_state(3).values["updates"] == 3


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_parameter_that_is_not_trained_has_no_memory_and_is_not_sent(dtype):
    device = HOST if dtype == "float32" else DEVICE
    parameters = make_parameters({"fc1_weight": 2.0, "fc2_weight": 2.0}, device)
    parameters["fc1_weight"].grad_req = "null"
    sent, world = [], LoneWorld()
    world.allreduce_all = lambda arrays, name, **more: sent.append(len(arrays))
    options = FaceOptimizerOptions(momentum=0.9, wd=0.1)
    optimizer = BackboneOptimizer(options, parameters, world, dtype=dtype)
    backward(parameters)
    optimizer.reduce(0)
    optimizer.update(0, lr=0.5)
    assert sent == [1]
    names = {name.partition(".")[0] for name in optimizer.export_state(1).arrays}
    assert names == {"fc2_weight"}
    assert parameters["fc1_weight"].data().asnumpy().tolist() == [2.0, 2.0]
    assert parameters["fc2_weight"].data().asnumpy()[0] < 2.0
