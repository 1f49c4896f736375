"""The graph rewritten for a CPU computes what the plain one computes, from the same parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backbones
from backbones.graph.onednn import prelu
from backbones.network import initial_weights
from runtime.mxnet import mx
from tests.backbones.passes import DATA, compare, conv, norm, operators

SLOPE = mx.sym.var("slope")


def bent(x: Any, slope: Any = SLOPE) -> Any:
    return mx.sym.LeakyReLU(x, gamma=slope, act_type="prelu", name="relu0")


@pytest.mark.parametrize(("name", "side"), [("r18", 48), ("mbf", 112)])
def test_steps_equal_those_of_the_plain_graph(name: str, side: int) -> None:
    plain, shape = backbones.build(name, embedding_size=32), (4, 3, side, side)
    fast = prelu.rewrite(plain, (side, side))
    assert "PReLU" in operators(plain) and "PReLU" not in operators(fast)
    weights, generator = initial_weights(plain, shape[1:], seed=4), np.random.default_rng(5)
    for key, value in weights.items():
        if key.endswith("_gamma") and "relu" in key:
            # Slopes of either sign and above 1: the result may not depend on the usual ones.
            value[:] = mx.nd.array(generator.uniform(-0.5, 1.5, value.shape))
    # Shifts before a BatchNorm have no gradient but rounding errors.
    assert compare(plain, fast, shape, weights, 0.02, 1e-5) < 2e-3


ONE: Any = {"side": 1, "no_bias": True}


@pytest.mark.parametrize(("groups", "kernel", "expected"), [
    (0, [], [[[1.0, -0.5]], [[2.0, 4.0]]]),
    # Kernel and slopes become two kernels; of several groups only if each is one channel.
    (1, [[10, 1], [100, 1000]], [[[12.0, -1.0]], [[2100.0, 3950.0]]]),
    (2, [[10], [100]], [[[10.0, -5.0]], [[200.0, 400.0]]]),
])
def test_a_prelu_and_a_convolution_after_it(groups: int, kernel: Any, expected: Any) -> None:
    """Of pixels of which a convolution makes [1, -2] and [2, -4]."""
    values = {
        "data": mx.nd.array([[[[1.0, -2.0]], [[0.0, 0.0]], [[0.0, 0.0]]]]),
        "w_weight": mx.nd.array([[1, 0, 0], [2, 0, 0]]).reshape((2, 3, 1, 1)),
        "slope": mx.nd.array([0.25, -1.0]),
    }
    plain = bent(conv(DATA, "w", 2, **ONE))
    if groups:
        plain = conv(plain, "k", 2, num_group=groups, **ONE)
        values["k_weight"] = mx.nd.array(kernel).reshape((2, -1, 1, 1))
    fast = prelu.rewrite(plain, (1, 2))
    assert operators(fast).count("Convolution") == 3 and "PReLU" not in operators(fast)
    assert fast.list_arguments() == plain.list_arguments()
    for graph in (plain, fast):
        (found,) = graph.bind(mx.cpu(), values).forward()[0].asnumpy().tolist()
        assert found == expected


OWN = {"gamma": mx.sym.var("gamma"), "beta": mx.sym.var("beta")}
NORM = norm(DATA, **OWN)


@pytest.mark.parametrize(("plain", "slopes", "count"), [
    # The BatchNorm takes a factor of the PReLU after it.
    *((bent(NORM), slopes, 1) for slopes in ([-1, 3, -0.01], [-20, 50, 1e-4])),
    # Not of slopes that are too steep, nor if it has no gamma, or if others need it.
    *((bent(NORM), [0.25, steep, 0.25], 2) for steep in (-31, -40)),
    (bent(norm(DATA, fix_gamma=True, **OWN)), [0.25, -1.0, 0.0], 2),
    (bent(NORM) + NORM, [0.25, -1.0, 0.0], 2),
])
def test_a_batch_norm_before_a_prelu(plain: Any, slopes: list[float], count: int) -> None:
    values = {"gamma": [0.5, -2.0, 1.0], "beta": [0.25, -0.5, 0.0], "slope": slopes}
    values |= {"bn_moving_mean": [0.0] * 3, "bn_moving_var": [1.0] * 3}
    weights = {name: mx.nd.array(value) for name, value in values.items()}
    fast = prelu.rewrite(plain, (5, 3), weights)
    # With a kernel of ones a convolution changes the layout alone.
    assert operators(fast).count("Convolution") - operators(fast).count("_ones") == count
    compare(plain, fast, (4, 3, 5, 3), weights)


def test_prelus_that_no_neighbor_can_scale_for() -> None:
    """Not a number; after BatchNorms without attributes or along the width; computed slopes."""
    steep = {"slope": mx.nd.array([0.25, float("nan"), 0.25])}
    # A slope whose shape only another node tells.
    other = mx.sym.elemwise_add(SLOPE, mx.sym.var("other", shape=(3,)))
    for plain, weights in (
        (bent(NORM), steep),
        (bent(mx.sym.BatchNorm(DATA)), {}),
        (bent(norm(DATA, axis=3)), {}),
        (mx.sym.Group([bent(norm(DATA), 2 * SLOPE), other])[0], {}),
    ):
        assert operators(prelu.rewrite(plain, (5, 3), weights)).count("Convolution") == 2
    # A costly convolution is not done twice.
    x = bent(conv(DATA, "conv0", 4, 1))
    for options in ({"kernel": (3, 3)}, {"channels": 8}, {"no_bias": False}):
        settings: Any = {"channels": 4, **ONE, **options}
        graph = prelu.rewrite(conv(x, "conv1", **settings), (8, 8))
        assert "broadcast_mul" not in operators(graph)
    without = backbones.build("tiny", embedding_size=16)
    assert operators(prelu.rewrite(without, (112, 112))) == operators(without)
