"""The graph rewritten for a CPU computes what the plain one computes, from the same parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backbones
from backbones.graph.onednn import prelu
from backbones.model import Backbone
from backbones.options import BackboneOptions
from runtime.mxnet import mx
from tests.backbones.graph.onednn.steps import compare, operators, step

SIZE = (112, 112)
DATA, SLOPE = mx.sym.var("data"), mx.sym.var("slope")


def bent(x: Any, slope: Any = SLOPE) -> Any:
    return mx.sym.LeakyReLU(x, gamma=slope, act_type="prelu", name="relu0")


@pytest.mark.parametrize(("name", "side"), [("r18", 48), ("mbf", 112)])
def test_steps_equal_those_of_the_plain_graph(name: str, side: int) -> None:
    plain, size = backbones.build(name, embedding_size=32), (side, side)
    fast = prelu.rewrite(plain, size)
    assert "PReLU" in operators(plain) and "PReLU" not in operators(fast)
    assert sorted(fast.list_arguments()) == sorted(plain.list_arguments())
    assert fast.list_outputs() == plain.list_outputs()
    options = BackboneOptions(network=name, embedding_size=32)
    created = Backbone.create(options, image_size=size, seed=4)
    weights = {key: value.data() for key, value in created.parameters.items()}
    generator = np.random.default_rng(5)
    for key, value in weights.items():
        if key.endswith("_gamma") and "relu" in key:
            # Slopes of either sign and above 1: the result may not depend on the usual ones.
            value[:] = mx.nd.array(generator.uniform(-0.5, 1.5, value.shape))
    expected, found = (step(one, plain, (4, 3, *size), weights) for one in (plain, fast))
    assert found.keys() == expected.keys()
    output = expected.pop("output")
    assert np.abs(found["output"] - output).max() < 2e-3 * np.abs(output).max()
    # Shifts before a BatchNorm have no gradient but rounding errors.
    largest = max(np.linalg.norm(array) for key, array in expected.items() if "moving" not in key)
    for key, array in expected.items():
        error = np.linalg.norm(found[key] - array)
        assert error <= 0.02 * np.linalg.norm(array) + 1e-5 * largest, key


def by_hand(graph: Any, **kernels: Any) -> Any:
    """The output for pixels of which a convolution makes [1, -2] and [2, -4]."""
    arguments = {
        "data": mx.nd.array([[[[1.0, -2.0]], [[0.0, 0.0]], [[0.0, 0.0]]]]),
        "w": mx.nd.array([[1, 0, 0], [2, 0, 0]]).reshape((2, 3, 1, 1)),
        "slope": mx.nd.array([0.25, -1.0]),
        **kernels,
    }
    return graph.bind(mx.cpu(), arguments).forward()[0].asnumpy()[0].tolist()


@pytest.mark.parametrize(
    ("groups", "kernel", "expected"),
    [
        (0, [], [[[1.0, -0.5]], [[2.0, 4.0]]]),
        # Kernel and slopes become two kernels; of several groups only if each is one channel.
        (1, [[10, 1], [100, 1000]], [[[12.0, -1.0]], [[2100.0, 3950.0]]]),
        (2, [[10], [100]], [[[10.0, -5.0]], [[200.0, 400.0]]]),
    ],
)
def test_a_prelu_and_a_convolution_after_it(groups: int, kernel: Any, expected: Any) -> None:
    sizes = {"kernel": (1, 1), "num_filter": 2, "no_bias": True}
    plain, kernels = bent(mx.sym.Convolution(DATA, weight=mx.sym.var("w"), **sizes)), {}
    if groups:
        weight, kernels = mx.sym.var("k"), {"k": mx.nd.array(kernel).reshape((2, -1, 1, 1))}
        plain = mx.sym.Convolution(plain, weight=weight, num_group=groups, name="conv1", **sizes)
    fast = prelu.rewrite(plain, (1, 2))
    assert operators(fast).count("Convolution") == 3 and "PReLU" not in operators(fast)
    assert fast.list_arguments() == plain.list_arguments()
    assert by_hand(fast, **kernels) == by_hand(plain, **kernels) == expected


def normalized(**settings: Any) -> Any:
    names = {"gamma": mx.sym.var("gamma"), "beta": mx.sym.var("beta"), "name": "bn0"}
    return mx.sym.BatchNorm(DATA, **{"fix_gamma": False, **names, **settings})


TWICE = normalized()


@pytest.mark.parametrize(
    ("plain", "slopes", "count"),
    [
        # The BatchNorm takes a factor of the PReLU after it.
        *((bent(normalized()), slopes, 1) for slopes in ([-1, 3, -0.01], [-20, 50, 1e-4])),
        # Not of slopes that are too steep, nor if it has no gamma, or if others need it.
        *((bent(normalized()), [0.25, steep, 0.25], 2) for steep in (-31, -40)),
        (bent(normalized(fix_gamma=True)), [0.25, -1.0, 0.0], 2),
        (bent(TWICE) + TWICE, [0.25, -1.0, 0.0], 2),
    ],
)
def test_a_batch_norm_before_a_prelu(plain: Any, slopes: list[float], count: int) -> None:
    values = {"gamma": [0.5, -2.0, 1.0], "beta": [0.25, -0.5, 0.0], "slope": slopes}
    values |= {"bn0_moving_mean": [0.0] * 3, "bn0_moving_var": [1.0] * 3}
    weights = {name: mx.nd.array(value) for name, value in values.items()}
    fast = prelu.rewrite(plain, (5, 3), weights)
    # With a kernel of ones a convolution changes the layout alone.
    assert operators(fast).count("Convolution") - operators(fast).count("_ones") == count
    compare(plain, fast, (4, 3, 5, 3), weights)


SIZES: dict[str, Any] = {"kernel": (1, 1), "num_filter": 4}


def test_prelus_that_no_neighbor_can_scale_for() -> None:
    """Not a number; after BatchNorms without attributes or along the width; computed slopes."""
    steep = {"slope": mx.nd.array([0.25, float("nan"), 0.25])}
    # A slope whose shape only another node tells.
    other = mx.sym.elemwise_add(SLOPE, mx.sym.var("other", shape=(3,)))
    computed = bent(mx.sym.BatchNorm(DATA, fix_gamma=False), 2 * SLOPE)
    for plain, weights in (
        (bent(normalized()), steep),
        (bent(mx.sym.BatchNorm(DATA)), {}),
        (bent(mx.sym.BatchNorm(DATA, axis=3, fix_gamma=False)), {}),
        (mx.sym.Group([computed, other])[0], {}),
    ):
        assert operators(prelu.rewrite(plain, (5, 3), weights)).count("Convolution") == 2
    # A costly convolution is not done twice.
    x = bent(mx.sym.Convolution(DATA, name="conv0", **SIZES))
    for options in ({"kernel": (3, 3)}, {"num_filter": 8}, {"no_bias": False}):
        graph = mx.sym.Convolution(x, name="conv1", **{"no_bias": True, **SIZES, **options})
        assert "broadcast_mul" not in operators(prelu.rewrite(graph, (8, 8)))
    without = backbones.build("tiny", embedding_size=16)
    assert operators(prelu.rewrite(without, SIZE)) == operators(without)
