"""The graph rewritten for a CPU computes what the plain one computes, from the same parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backbones
from backbones.graph.nodes import consumers
from backbones.graph.onednn import prelu
from backbones.model import Backbone
from backbones.options import BackboneOptions
from runtime.mxnet import mx

SIZE = (112, 112)


def operators(symbol) -> list[str]:
    """The operators of a graph; a PReLU is called by its own name."""
    nodes = json.loads(symbol.tojson())["nodes"]
    return ["PReLU" if is_prelu(node) else node["op"] for node in nodes]


def is_prelu(node: dict) -> bool:
    return node["op"] == "LeakyReLU" and node["attrs"]["act_type"] == "prelu"


def run(symbol, weights, images, gradient):
    """The features of a training pass and the gradient of every parameter."""
    backbone = Backbone(symbol, symbol, weights, mx.cpu())
    with mx.autograd.record():
        features = backbone(mx.nd.array(images))
    features.backward(gradient)
    gradients = {
        name: parameter.grad().asnumpy()
        for name, parameter in backbone.parameters.items()
        if parameter.grad_req != "null"
    }
    return features.asnumpy(), gradients


@pytest.mark.parametrize("name", ["r18", "mbf"])
def test_outputs_and_gradients_equal_those_of_the_plain_graph(name, images) -> None:
    plain = backbones.build(name, embedding_size=32)
    fast = prelu.rewrite(plain, SIZE)
    assert "PReLU" in operators(plain) and "PReLU" not in operators(fast)
    assert sorted(fast.list_arguments()) == sorted(plain.list_arguments())
    assert fast.list_outputs() == plain.list_outputs()

    created = Backbone.create(BackboneOptions(network=name, embedding_size=32), seed=4)
    weights = {key: value.data() for key, value in created.parameters.items()}
    generator = np.random.default_rng(5)
    for key, value in weights.items():
        if key.endswith("_gamma") and "relu" in key:
            # Slopes of either sign and above 1: the result may not depend on the usual ones.
            value[:] = mx.nd.array(generator.uniform(-0.5, 1.5, value.shape))
    gradient = mx.nd.array(generator.normal(size=(4, 32)))
    features, gradients = run(plain, weights, images, gradient)
    fast_features, fast_gradients = run(fast, weights, images, gradient)
    assert np.abs(fast_features - features).max() < 2e-3 * np.abs(features).max()
    assert fast_gradients.keys() == gradients.keys()
    # Shifts before a BatchNorm have no gradient but rounding errors.
    largest = max(np.linalg.norm(gradient) for gradient in gradients.values())
    for key, expected in gradients.items():
        error = np.linalg.norm(fast_gradients[key] - expected)
        assert error <= 0.02 * np.linalg.norm(expected) + 1e-5 * largest, key


def test_a_single_prelu_by_hand() -> None:
    x, slope = mx.sym.var("data"), mx.sym.var("relu0_gamma", shape=(2,))
    convolved = mx.sym.Convolution(
        x, kernel=(1, 1), num_filter=2, no_bias=True, name="conv0", weight=mx.sym.var("w")
    )
    plain = mx.sym.LeakyReLU(convolved, gamma=slope, act_type="prelu", name="relu0")
    fast = prelu.rewrite(plain, (1, 2))
    arguments = {
        "data": mx.nd.array([[[[1.0, -2.0]], [[0.0, 0.0]], [[0.0, 0.0]]]]),
        "w": mx.nd.array([[1, 0, 0], [2, 0, 0]]).reshape((2, 3, 1, 1)),
        "relu0_gamma": mx.nd.array([0.25, -1.0]),
    }
    output = fast.bind(mx.cpu(), arguments).forward()[0].asnumpy()
    assert output.tolist() == [[[[1.0, -0.5]], [[2.0, 4.0]]]]


def normalized(fix_gamma: bool = False, branches: int = 1):
    """Three channels of a PReLU behind a BatchNorm, which may lead to a sum with itself as well."""
    x = mx.sym.BatchNorm(
        mx.sym.var("data"), mx.sym.var("gamma"), mx.sym.var("beta"), fix_gamma=fix_gamma, name="bn0"
    )
    bent = mx.sym.LeakyReLU(x, gamma=mx.sym.var("slope"), act_type="prelu", name="relu0")
    return bent + x if branches > 1 else bent


def trained(symbol, slope: list[float]) -> list[np.ndarray]:
    """What a step computes: output, gradients of data and parameters, running statistics.

    By a Backbone, and not by an executor: in one of those, MXNet's PReLU overwrites its input,
    which its backward pass needs.
    """
    generator = np.random.default_rng(3)
    values = {
        "gamma": [0.5, -2.0, 1.0],
        "beta": [0.25, -0.5, 0.0],
        "slope": slope,
        "bn0_moving_mean": [0.0, 0.0, 0.0],
        "bn0_moving_var": [1.0, 1.0, 1.0],
    }
    weights = {name: mx.nd.array(value) for name, value in values.items()}
    backbone = Backbone(symbol, symbol, weights, mx.cpu())
    data = mx.nd.array(generator.normal(1, 2, (4, 3, 5, 3)))
    data.attach_grad()
    with mx.autograd.record():
        output = backbone(data)
    output.backward(mx.nd.array(generator.normal(size=(4, 3, 5, 3))))
    results = [output, data.grad]
    for parameter in map(backbone.parameters.get, values):
        results.append(parameter.data() if parameter.grad_req == "null" else parameter.grad())
    return [result.asnumpy() for result in results]


def scalings(symbol) -> int:
    """The convolutions that multiply; with a kernel of ones they change the layout alone."""
    found = operators(symbol)
    return found.count("Convolution") - found.count("_ones")


@pytest.mark.parametrize("slope", [[0.25, 0.0, 1.0], [-1.0, 3.0, -0.01], [-20.0, 50.0, 1e-4]])
def test_a_batch_norm_takes_a_factor_of_the_prelu_behind_it(slope) -> None:
    plain = normalized()
    fast = prelu.rewrite(plain, (5, 3))
    assert scalings(fast) == 1
    for found, expected in zip(trained(fast, slope), trained(plain, slope), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("slope", [-31.0, -40.0, float("nan")])
def test_a_slope_that_is_too_steep_leaves_the_batch_norm_alone(slope: float) -> None:
    plain = normalized()
    fast = prelu.rewrite(plain, (5, 3), {"slope": mx.nd.array([0.25, slope, 0.25])})
    assert operators(fast).count("Convolution") == 2
    if not np.isnan(slope):
        slopes = [0.25, slope, 0.25]
        for found, expected in zip(trained(fast, slopes), trained(plain, slopes), strict=True):
            limit = 1e-4 * np.abs(expected).max()
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=limit)


def test_other_batch_norms_and_computed_slopes_are_left_alone() -> None:
    """A BatchNorm without attributes, one along the width, and a slope that is computed late."""
    data, slope = mx.sym.var("data"), mx.sym.var("slope")
    normalizations = [mx.sym.BatchNorm(data), mx.sym.BatchNorm(data, axis=3, fix_gamma=False)]
    for normalization in normalizations:
        bent = mx.sym.LeakyReLU(normalization, gamma=slope, act_type="prelu", name="relu0")
        assert operators(prelu.rewrite(bent, (5, 3))).count("Convolution") == 2
    normalization = mx.sym.BatchNorm(data, fix_gamma=False)
    bent = mx.sym.LeakyReLU(normalization, gamma=2 * slope, act_type="prelu", name="relu0")
    # Where nothing else tells its shape.
    bent = mx.sym.Group([bent, mx.sym.elemwise_add(slope, mx.sym.var("other", shape=(3,)))])
    assert operators(prelu.rewrite(bent[0], (5, 3))).count("Convolution") == 2


@pytest.mark.parametrize("options", [{"fix_gamma": True}, {"branches": 2}])
def test_a_batch_norm_that_others_need_or_that_has_no_gamma_is_left_alone(options) -> None:
    plain = normalized(**options)
    fast = prelu.rewrite(plain, (5, 3))
    assert scalings(fast) == 2
    for found, expected in zip(
        trained(fast, [0.25, -1, 0]), trained(plain, [0.25, -1, 0]), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_behind_a_prelu_by_hand(groups: int) -> None:
    """Kernel and slopes become two kernels; of several groups only if each is one channel."""
    x, slope = mx.sym.var("data"), mx.sym.var("relu0_gamma")
    sizes = {"kernel": (1, 1), "num_filter": 2, "no_bias": True}
    first = mx.sym.Convolution(x, weight=mx.sym.var("w"), name="conv0", **sizes)
    bent = mx.sym.LeakyReLU(first, gamma=slope, act_type="prelu", name="relu0")
    plain = mx.sym.Convolution(
        bent, weight=mx.sym.var("k"), num_group=groups, name="conv1", **sizes
    )
    fast = prelu.rewrite(plain, (1, 2))
    assert operators(fast).count("Convolution") == 3
    assert fast.list_arguments() == plain.list_arguments()
    kernel = mx.nd.array([[10, 1], [100, 1000]] if groups == 1 else [[10], [100]])
    arguments = {
        "data": mx.nd.array([[[[1.0, -2.0]], [[0.0, 0.0]], [[0.0, 0.0]]]]),
        "w": mx.nd.array([[1, 0, 0], [2, 0, 0]]).reshape((2, 3, 1, 1)),
        "relu0_gamma": mx.nd.array([0.25, -1.0]),
        "k": kernel.reshape((2, -1, 1, 1)),
    }
    # PReLU gives [1, -0.5] and [2, 4].
    expected = [[[12.0, -1.0]], [[2100.0, 3950.0]]] if groups == 1 else [[[10, -5]], [[200, 400]]]
    for graph in (plain, fast):
        assert graph.bind(mx.cpu(), arguments).forward()[0].asnumpy()[0].tolist() == expected


@pytest.mark.parametrize("options", [{"kernel": (3, 3)}, {"num_filter": 8}, {"no_bias": False}])
def test_a_costly_convolution_is_not_done_twice(options) -> None:
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(1, 1), num_filter=4, name="conv0")
    x = mx.sym.LeakyReLU(x, act_type="prelu", name="relu0")
    settings = {"kernel": (1, 1), "num_filter": 4, "no_bias": True, **options}
    graph = prelu.rewrite(mx.sym.Convolution(x, name="conv1", **settings), (8, 8))
    assert "broadcast_mul" not in operators(graph)


def nodes(path: Path) -> list[dict]:
    """Return the nodes of a graph on disk; MXNet leaves attributes of operators on variables."""
    found = json.loads(path.read_text())["nodes"]
    return [{**node, "attrs": node["op"] != "null" and node.get("attrs")} for node in found]


def test_what_is_exported_is_the_plain_graph(tmp_path) -> None:
    backbone = Backbone.create(BackboneOptions(network="mbf", embedding_size=16))
    backbone.export(tmp_path / "model")
    exported = mx.sym.load(str(tmp_path / "model-symbol.json"))
    assert operators(exported) == operators(backbones.build("mbf", embedding_size=16))
    loaded = Backbone.load(tmp_path / "model")
    loaded.export(tmp_path / "again")
    assert nodes(tmp_path / "again-symbol.json") == nodes(tmp_path / "model-symbol.json")


def test_a_graph_without_prelu_stays_as_it_is() -> None:
    plain = backbones.build("tiny", embedding_size=16)
    assert operators(prelu.rewrite(plain, SIZE)) == operators(plain)


def test_consumers_by_hand() -> None:
    """3 and 4 read node 2; the second output of 3, the second input of 4 and heads count as -1."""
    nodes: list[dict[str, Any]] = [
        {"inputs": []},
        {"inputs": []},
        {"inputs": [[0, 0, 0], [1, 0, 0]]},
        {"inputs": [[2, 0, 0]]},
        {"inputs": [[2, 0, 0], [3, 0, 0]]},
        {"inputs": [[3, 1, 0]]},
    ]
    found = consumers(nodes, [[4, 0, 0], [5, 0, 0]])
    assert found == {4: [-1], 5: [-1], 0: [2], 1: [-1], 2: [3, 4], 3: [-1, -1]}
    found = consumers(nodes, [[4, 0, 0], [5, 0, 0]], any_input=True)
    assert found == {4: [-1], 5: [-1], 0: [2], 1: [2], 2: [3, 4], 3: [4, -1]}
