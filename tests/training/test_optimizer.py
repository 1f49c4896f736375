"""The backbone's optimizer: sums over the ranks, decay by ``wd_mult``, the loss scale undone."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.mxnet import mx
from tests.support.thread_world import run_ranks
from training.optimizer import BackboneOptimizer


def make_parameters(values):
    parameters = mx.gluon.ParameterDict()
    for name, value in values.items():
        parameter = parameters.get(name, shape=(2,), init=mx.init.Constant(value))
        parameter.initialize(ctx=mx.cpu())
        parameter.wd_mult = float(name.endswith("_weight"))
    return parameters


def train(world, initial, factor, scale=1.0):
    """One update of w with the loss factor * sum(w), decay 0.1, learning rate 0.5."""
    parameters = make_parameters({"fc_weight": initial, "fc_bias": initial})
    optimizer = BackboneOptimizer(
        parameters, world, momentum=0.0, weight_decay=0.1, dtype="float32"
    )
    optimizer.loss_scale.value = scale
    with mx.autograd.record():
        loss = sum(scale * factor * value.data().sum() for value in parameters.values())
    loss.backward()
    optimizer.step(0, lr=0.5)
    return {name: value.data().asnumpy() for name, value in parameters.items()}


def test_gradients_are_summed_and_only_weights_decay():
    results = run_ranks(3, lambda world: train(world, 2.0, factor=world.rank + 1.0))
    for result in results:
        # Gradient 1 + 2 + 3 on every rank; the weight decays by 0.1 * 2.
        assert result["fc_weight"] == pytest.approx(2.0 - 0.5 * (6.0 + 0.2))
        assert result["fc_bias"] == pytest.approx(2.0 - 0.5 * 6.0)


def test_every_rank_starts_from_rank_zero():
    results = run_ranks(2, lambda world: train(world, 2.0 + world.rank, factor=1.0))
    for name, value in results[0].items():
        assert np.array_equal(value, results[1][name])


def test_the_loss_scale_does_not_change_the_update():
    plain = run_ranks(1, lambda world: train(world, 2.0, factor=1.0))[0]
    scaled = run_ranks(1, lambda world: train(world, 2.0, factor=1.0, scale=1024.0))[0]
    for name, value in plain.items():
        assert scaled[name] == pytest.approx(value, rel=1e-6)
