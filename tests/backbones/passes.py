"""Small graphs and networks, and what their training passes compute."""

from typing import Any, Optional

import numpy as np

from backbones.classifiers import Normalization
from backbones.graph.nodes import Shape, to_json
from backbones.model import Backbone, Classifier
from backbones.network import Network, initial_weights
from backbones.options import BackboneOptions, ClassifierOptions
from runtime.mxnet import mx

Arrays = dict[str, np.ndarray]
DATA = mx.sym.var("data")
IMAGES = np.random.default_rng(7).integers(0, 256, (4, 3, 112, 112), dtype=np.uint8)


def conv(x: Any, name: str, channels: int = 8, side: int = 3, **settings: Any) -> Any:
    """Return a convolution with a bias, whose maps keep their size unless told otherwise."""
    sizes = {"num_filter": channels, "kernel": (side, side), "pad": (side // 2, side // 2)}
    return mx.sym.Convolution(x, **{**sizes, **settings}, name=name)


def norm(x: Any, name: str = "bn", **settings: Any) -> Any:
    return mx.sym.BatchNorm(x, **{"fix_gamma": False, **settings}, name=name)


def act(x: Any, kind: str = "relu", name: Optional[str] = None) -> Any:
    """Return an activation; the slopes of a PReLU are parameters."""
    if kind in ("prelu", "leaky"):
        return mx.sym.LeakyReLU(x, act_type=kind, name=name or "relu0")
    return mx.sym.Activation(x, act_type=kind, name=name)


def nodes_of(symbol: Any) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in to_json(symbol)["nodes"]}


def operators(symbol: Any) -> list[str]:
    """Return the operators of a graph in their order; a PReLU is called by its own name."""
    found = [node for node in to_json(symbol)["nodes"] if node["op"] != "null"]
    are_prelu = [node.get("attrs", {}).get("act_type") == "prelu" for node in found]
    return ["PReLU" if is_prelu else node["op"] for node, is_prelu in zip(found, are_prelu)]


def create(
    network: str = "tiny", side: int = 112, *, seed: int = 3, ctx: Any = None, **options: Any
) -> Backbone:
    settings: Any = {"network": network, "embedding_size": 16, **options}
    chosen = BackboneOptions(**settings)
    backbone = Backbone.create(chosen, image_size=(side, side), seed=seed, ctx=ctx)
    backbone.hybridize()
    return backbone


def classifier(
    model: str, shape: Shape = (3, 32, 32), *,
    classes: int = 10, seed: int = 0, ctx: Any = None, **options: Any,
) -> Classifier:  # fmt: skip
    mean, deviation = (0.49, 0.48, 0.45)[: shape[0]], (0.25, 0.2, 0.3)[: shape[0]]
    settings: Any = {"normalization": Normalization(mean, deviation), "image_shape": shape}
    chosen = ClassifierOptions(model=model, **options)
    return Classifier.create(chosen, classes=classes, seed=seed, ctx=ctx, **settings)


def values(network: Network) -> Arrays:
    return {name: one.data().asnumpy() for name, one in network.parameters.items()}


def results(network: Network, output: Any) -> Arrays:
    mx.nd.waitall()
    found = {"features": output}
    for name, one in network.parameters.items():
        found[name] = one.data() if one.grad_req == "null" else one.grad()
    return {name: array.asnumpy() for name, array in found.items()}


def gradient_of(shape: tuple[int, int]) -> Any:
    return mx.nd.array(np.random.default_rng(5).normal(size=shape) / 64)


def train(network: Network, images: np.ndarray, *, updates: int = 2, lr: float = 0.1) -> Arrays:
    trainer = mx.gluon.Trainer(network.parameters, "sgd", {"learning_rate": lr}, kvstore=None)
    for update in range(updates):
        if isinstance(network, Backbone):
            network.begin_update(update, rank=0)
        with mx.autograd.record():
            features = network(mx.nd.array(images, dtype="uint8"))
        network.backward(features, gradient_of(features.shape))
        trainer.update(1)
        # MXNet does not know that a backward pass changes the running statistics.
        mx.nd.waitall()
    return results(network, features)


def step(symbol: Any, plain: Any, shape: tuple[int, ...], weights: Optional[Any] = None) -> Arrays:
    """Return the results of one pass of a form of ``plain``, and the gradient of its images."""
    generator = np.random.default_rng(2)
    if weights is None:
        weights = initial_weights(plain, shape[1:], seed=1)
        for name, value in weights.items():
            if not name.endswith(("_weight", "_var")):
                value[:] = mx.nd.array(generator.uniform(0.5, 1.5, value.shape))
    network = Network(symbol, plain, weights, mx.cpu())
    data = mx.nd.array(generator.normal(1, 2, shape))
    data.attach_grad()
    with mx.autograd.record():
        output = network(data)
    network.backward(output, mx.nd.array(generator.normal(size=output.shape)))
    return {**results(network, output), "data": data.grad.asnumpy()}


def assert_same(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def compare(plain: Any, fast: Any, shape: Shape, weights: Any = None, *shares: float) -> float:
    """Assert that a graph has the parameters of another and computes the same steps.

    Each array may differ by a share of its length and one of the longest gradient's. Returns the
    largest error of a feature, as a share of the largest feature.
    """
    share, least = shares or (1e-3, 1e-6)
    assert sorted(fast.list_arguments()) == sorted(plain.list_arguments())
    assert fast.list_outputs() == plain.list_outputs()
    found, expected = (step(one, plain, shape, weights) for one in (fast, plain))
    assert found.keys() == expected.keys()
    lengths = {name: np.linalg.norm(array) for name, array in expected.items()}
    longest = max(lengths[name] for name in lengths if name != "features" and "moving" not in name)
    for name, array in expected.items():
        error = np.linalg.norm(found[name] - array)
        assert error <= share * lengths[name] + least * longest, name
    features = expected["features"]
    return float(np.abs(found["features"] - features).max() / np.abs(features).max())
