"""The backbone's optimizer: sums over the ranks, its rule, decay by ``wd_mult``, the loss scale."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.mxnet import mx
from tests.support.thread_world import run_ranks
from training.config.faces import FaceOptimizerOptions
from training.update.optimizer import BackboneOptimizer


def make_parameters(values):
    parameters = mx.gluon.ParameterDict()
    for name, value in values.items():
        parameter = parameters.get(name, shape=(2,), init=mx.init.Constant(value))
        parameter.initialize(ctx=mx.cpu())
        parameter.wd_mult = float(name.endswith("_weight"))
    return parameters


def train(world, initial, factor, scale=1.0, name="sgd", updates=1):
    """Updates of w with the loss factor * sum(w), decay 0.1, learning rate 0.5."""
    parameters = make_parameters({"fc_weight": initial, "fc_bias": initial})
    optimizer = BackboneOptimizer(
        FaceOptimizerOptions(momentum=0.0, wd=0.1, optimizer=name),
        parameters,
        world,
        dtype="float32",
    )
    optimizer.loss_scale.value = scale
    for update in range(updates):
        with mx.autograd.record():
            loss = sum(scale * factor * value.data().sum() for value in parameters.values())
        loss.backward()
        optimizer.reduce(0)
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
        parameters = make_parameters({"fc_bias": 2.0})
        options = FaceOptimizerOptions(momentum=0.0, wd=0.0)
        optimizer = BackboneOptimizer(options, parameters, world, dtype="float16")
        optimizer.loss_scale._good_updates = 1999
        scale = optimizer.loss_scale.value
        with mx.autograd.record():
            loss = scale * parameters["fc_bias"].data().sum()
        loss.backward()
        optimizer.reduce(0)
        optimizer.update(0, lr=0.5)
        assert optimizer.loss_scale.value == 2 * scale
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
    plain = run_ranks(1, lambda world: train(world, 2.0, factor=1.0, name=name))[0]
    scaled = run_ranks(1, lambda world: train(world, 2.0, factor=1.0, scale=1024.0, name=name))[0]
    for name, value in plain.items():
        assert scaled[name] == pytest.approx(value, rel=1e-6)
