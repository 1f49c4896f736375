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


def train(world, initial, factor, name="sgd", updates=1, device=HOST, dtype="float32"):
    """Updates of w with the loss factor * sum(w), decay 0.1, learning rate 0.5."""
    parameters = make_parameters({"fc_weight": initial, "fc_bias": initial}, device)
    optimizer = BackboneOptimizer(
        FaceOptimizerOptions(momentum=0.0, wd=0.1, optimizer=name),
        parameters,
        world,
        dtype=dtype,
    )
    for update in range(updates):
        with mx.autograd.record():
            loss = factor * sum(value.data().sum() for value in parameters.values())
            loss = optimizer.loss_scale.scaled(loss)
        loss.backward()
        optimizer.reduce(update)
        optimizer.update(update, lr=0.5)
    return {name: value.data().asnumpy() for name, value in parameters.items()}


def test_gradients_are_summed_and_only_weights_decay():
    results = run_ranks(3, lambda world: train(world, 2.0, factor=world.rank + 1.0))
    for result in results:
        # Gradient 1 + 2 + 3 on every rank; the weight decays by 0.1 * 2.
        assert result["fc_weight"] == pytest.approx(2.0 - 0.5 * (6.0 + 0.2))
        assert result["fc_bias"] == pytest.approx(2.0 - 0.5 * 6.0)


def test_the_update_that_raises_the_loss_scale_is_a_whole_step():
    def step(world):
        parameters = make_parameters({"fc_bias": 2.0}, DEVICE)
        options = FaceOptimizerOptions(momentum=0.0, wd=0.0)
        optimizer = BackboneOptimizer(options, parameters, world, dtype="float16")
        saved = {"loss_scale": 8.0, "good_updates": 1999}
        optimizer.loss_scale.load_state(
            SimpleNamespace(number=saved.__getitem__, count=saved.__getitem__)
        )
        with mx.autograd.record():
            loss = optimizer.loss_scale.scaled(parameters["fc_bias"].data().sum())
        loss.backward()
        optimizer.reduce(0)
        optimizer.update(0, lr=0.5)
        assert optimizer.export_state(1).values["loss_scale"] == 16.0
        return parameters["fc_bias"].data().asnumpy().tolist()

    assert run_ranks(1, step) == [[1.5, 1.5]]


def test_every_rank_starts_from_rank_zero():
    results = run_ranks(2, lambda world: train(world, 2.0 + world.rank, factor=1.0))
    for result in results:
        assert result["fc_weight"] == pytest.approx(2.0 - 0.5 * (2.0 + 0.2))
        assert result["fc_bias"] == pytest.approx(2.0 - 0.5 * 2.0)
    for name, value in results[0].items():
        assert np.array_equal(value, results[1][name])


def test_a_step_of_adam_is_the_learning_rate():
    # With a constant gradient both corrected moments stay g and g², so every step is 0.5.
    result = run_ranks(2, lambda world: train(world, 2.0, 1.0, name="adam", updates=2))[1]
    assert result["fc_bias"] == pytest.approx(2.0 - 2 * 0.5, rel=1e-4)
    # Decay is part of the gradient of the weight (2.2, then 2.15): the direction stays the same.
    first, second = 2.0 + 0.1 * 2.0, 2.0 + 0.1 * 1.5
    moment = (0.9 * 0.1 * first + 0.1 * second) / (1 - 0.9**2)
    square = (0.999 * 0.001 * first**2 + 0.001 * second**2) / (1 - 0.999**2)
    assert result["fc_weight"] == pytest.approx(1.5 - 0.5 * moment / square**0.5, rel=1e-4)


def test_adamw_decays_beside_the_step():
    result = run_ranks(1, lambda world: train(world, 2.0, 1.0, name="adamw", updates=2))[0]
    assert result["fc_bias"] == pytest.approx(2.0 - 2 * 0.5, rel=1e-4)
    # Each update takes 0.5 · 0.1 of the weight and 0.5: 2 → 1.4 → 0.83.
    assert result["fc_weight"] == pytest.approx(0.83, rel=1e-4)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_tiny_gradients_move_less_because_of_epsilon(name):
    """Before the moments are corrected, epsilon stands beside 0.03 of the gradient's size."""
    result = run_ranks(1, lambda world: train(world, 2.0, 1e-6, name=name))[0]
    size = (1 - 0.999) ** 0.5 * 1e-6
    assert result["fc_bias"] == pytest.approx(2.0 - 0.5 * size / (size + 1e-8), rel=1e-3)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_the_loss_scale_does_not_change_the_update(name):
    plain = run_ranks(1, lambda world: train(world, 2.0, 1.0, name, device=DEVICE))[0]
    scaled = run_ranks(
        1, lambda world: train(world, 2.0, 1.0, name, device=DEVICE, dtype="float16")
    )[0]
    for name, value in plain.items():
        assert scaled[name] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_a_device_computes_what_the_host_does(name):
    host, device = (
        run_ranks(2, lambda world, ctx=ctx: train(world, 2.0, 3.0, name, 5, ctx))[1]
        for ctx in (HOST, DEVICE)
    )
    for name, value in host.items():
        assert device[name] == pytest.approx(value, rel=1e-6)


def many(momentum):
    """More parameters than MXNet updates at once, of several sizes, on the device."""
    generator = np.random.default_rng(0)
    parameters = mx.gluon.ParameterDict()
    for number in range(130):
        parameter = parameters.get(f"fc{number}_weight", shape=(1 + number % 7, 3))
        parameter.initialize(mx.init.Zero(), ctx=DEVICE)
        parameter.set_data(mx.nd.array(generator.normal(size=parameter.shape)))
        parameter.grad()[:] = mx.nd.array(generator.normal(size=parameter.shape))
        parameter.wd_mult = float(number % 2)
        # As a backward pass leaves it.
        for data in parameter.list_data():
            data._fresh_grad = True
    return parameters


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("aggregated", ["1", "4", "60"])
def test_parameters_are_updated_alike_however_many_at_once(momentum, aggregated, monkeypatch):
    monkeypatch.setenv("MXNET_OPTIMIZER_AGGREGATION_SIZE", aggregated)
    parameters = many(momentum)
    expected = {}
    for name, parameter in parameters.items():
        weight, gradient = parameter.data().copy(), parameter.grad()
        inputs, wd = [weight, gradient, mx.nd.zeros_like(weight)], 0.1 * parameter.wd_mult
        mx.nd.multi_sgd_mom_update(
            *inputs, out=weight, lrs=[0.5], wds=[wd], momentum=momentum, num_weights=1
        )
        expected[name] = weight.asnumpy()
    optimizer = BackboneOptimizer(
        FaceOptimizerOptions(momentum=momentum, wd=0.1), parameters, LoneWorld(), dtype="float32"
    )
    optimizer.reduce(0)
    optimizer.update(0, lr=0.5)
    for name, parameter in parameters.items():
        np.testing.assert_array_equal(parameter.data().asnumpy(), expected[name], err_msg=name)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_the_host_leaves_weights_alone_that_a_bad_gradient_would_spoil(bad):
    parameters = make_parameters({"fc_bias": 2.0})
    options = FaceOptimizerOptions(momentum=0.9, wd=0.0)
    optimizer = BackboneOptimizer(options, parameters, LoneWorld(), dtype="float32")
    gradient = parameters["fc_bias"].grad()
    gradient[:] = bad
    reduced = optimizer.reduce(0)
    optimizer.update(0, lr=0.5)
    # The next backward pass overwrites the gradient before the step asks.
    gradient[:] = 1.0
    assert reduced.numbers == ()
    assert not reduced.are_finite(())
    assert parameters["fc_bias"].data().asnumpy().tolist() == [2.0, 2.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30, None])
def test_a_device_remembers_what_it_saw_of_an_update(bad):
    parameters = make_parameters({"fc_bias": 2.0, "fc_weight": 2.0}, DEVICE)
    options = FaceOptimizerOptions(momentum=0.0, wd=0.0)
    optimizer = BackboneOptimizer(options, parameters, LoneWorld(), dtype="float32")
    gradient = parameters["fc_bias"].grad()
    gradient[:] = 1.0 if bad is None else bad
    (number,) = optimizer.reduce(0).numbers
    gradient[:] = 1.0
    reduced = optimizer.reduce(1)
    assert number.context == DEVICE and number.shape == (1,) and number.dtype == np.float32
    assert reduced.are_finite([number.asscalar()]) == (bad is None)
    assert reduced.are_finite([reduced.numbers[0].asscalar()])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
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
        with mx.autograd.record():
            loss = sum(value.data().sum() for value in parameters.values())
            loss = optimizer.loss_scale.scaled(loss)
        loss.backward()
        optimizer.reduce(update)
        optimizer.update(update, lr=0.5)
    monkeypatch.undo()
    assert optimizer.export_state(3).values["updates"] == 3


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_parameter_that_is_not_trained_has_no_memory_and_is_not_sent(dtype):
    device = HOST if dtype == "float32" else DEVICE
    parameters = make_parameters({"fc1_weight": 2.0, "fc2_weight": 2.0}, device)
    parameters["fc1_weight"].grad_req = "null"
    options = FaceOptimizerOptions(momentum=0.9, wd=0.1)
    sent = []

    world = LoneWorld()
    world.allreduce_all = lambda arrays, name, **more: sent.append(len(arrays))
    optimizer = BackboneOptimizer(options, parameters, world, dtype=dtype)
    parameters["fc2_weight"].grad()[:] = 1.0
    for data in parameters["fc2_weight"].list_data():
        data._fresh_grad = True
    optimizer.reduce(0)
    optimizer.update(0, lr=0.5)
    assert sent == [1]
    names = {name.partition(".")[0] for name in optimizer.export_state(1).arrays}
    assert names == {"fc2_weight"}
    assert parameters["fc1_weight"].data().asnumpy().tolist() == [2.0, 2.0]
    assert parameters["fc2_weight"].data().asnumpy()[0] < 2.0
