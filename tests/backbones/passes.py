"""Networks and what their training passes compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbones.model import Backbone
from backbones.network import Network
from backbones.options import BackboneOptions
from runtime.mxnet import mx

Arrays = dict[str, np.ndarray]


def create(network: str = "tiny", side: int = 112, **options: Any) -> Backbone:
    """Return a network for square images, always with the same weights."""
    chosen = BackboneOptions(network=network, embedding_size=16, **options)
    backbone = Backbone.create(chosen, image_size=(side, side), seed=3)
    backbone.hybridize()
    return backbone


def gradient_of(shape: tuple[int, int]) -> Any:
    """Return the gradient of outputs [b, n] that ``train`` gives."""
    return mx.nd.array(np.random.default_rng(5).normal(size=shape) / 64)


def train(network: Network, images: np.ndarray, *, updates: int = 2, lr: float = 0.1) -> Arrays:
    """Return features, gradients, and what has no gradient, of the last update."""
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
    found = {"features": features.asnumpy()}
    for name, parameter in network.parameters.items():
        array = parameter.data() if parameter.grad_req == "null" else parameter.grad()
        found[name] = array.asnumpy()
    return found


def assert_same(found: Arrays, expected: Arrays) -> None:
    """Compare the arrays of two passes bit for bit."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
