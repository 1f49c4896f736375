"""The form of a graph on a CPU computes what the plain graph computes, from the same parameters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import backbones
from backbones import cpu
from backbones.model import Backbone
from runtime.mxnet import mx

SIZE = (112, 112)


def operators(symbol) -> list[str]:
    return [node["op"] for node in json.loads(symbol.tojson())["nodes"]]


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
    fast = cpu.form(plain, SIZE)
    assert "LeakyReLU" in operators(plain) and "LeakyReLU" not in operators(fast)
    assert fast.list_arguments() == plain.list_arguments()
    assert fast.list_outputs() == plain.list_outputs()

    created = Backbone.create(name, embedding_size=32, seed=4)
    weights = {key: value.data() for key, value in created.parameters.items()}
    generator = np.random.default_rng(5)
    for key, value in weights.items():
        if key.endswith("_gamma") and "relu" in key:
            # Slopes of either sign and above 1: no form may depend on the usual ones.
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
    fast = cpu.form(plain, (1, 2))
    arguments = {
        "data": mx.nd.array([[[[1.0, -2.0]], [[0.0, 0.0]], [[0.0, 0.0]]]]),
        "w": mx.nd.array([[1, 0, 0], [2, 0, 0]]).reshape((2, 3, 1, 1)),
        "relu0_gamma": mx.nd.array([0.25, -1.0]),
    }
    output = fast.bind(mx.cpu(), arguments).forward()[0].asnumpy()
    assert output.tolist() == [[[[1.0, -0.5]], [[2.0, 4.0]]]]


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
    fast = cpu.form(plain, (1, 2))
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
    graph = cpu.form(mx.sym.Convolution(x, name="conv1", **settings), (8, 8))
    assert "broadcast_mul" not in operators(graph)


def nodes(path: Path) -> list[dict]:
    """Return the nodes of a graph on disk; MXNet leaves attributes of operators on variables."""
    found = json.loads(path.read_text())["nodes"]
    return [{**node, "attrs": node["op"] != "null" and node.get("attrs")} for node in found]


def test_what_is_exported_is_the_plain_graph(tmp_path) -> None:
    backbone = Backbone.create("mbf", embedding_size=16)
    backbone.export(tmp_path / "model")
    exported = mx.sym.load(str(tmp_path / "model-symbol.json"))
    assert operators(exported) == operators(backbones.build("mbf", embedding_size=16))
    loaded = Backbone.load(tmp_path / "model")
    loaded.export(tmp_path / "again")
    assert nodes(tmp_path / "again-symbol.json") == nodes(tmp_path / "model-symbol.json")


def test_a_graph_without_prelu_stays_as_it_is() -> None:
    plain = backbones.build("tiny", embedding_size=16)
    assert operators(cpu.form(plain, SIZE)) == operators(plain)
