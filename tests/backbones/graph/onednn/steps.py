"""A training step by a plain graph and by another form of it, and what graphs are made of."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from backbones.graph.nodes import to_json
from backbones.network import Network, initial_weights
from runtime.mxnet import mx

Arrays = dict[str, np.ndarray]


def nodes_of(symbol: Any) -> dict[str, dict[str, Any]]:
    """Return the nodes of a graph by their names."""
    return {node["name"]: node for node in to_json(symbol)["nodes"]}


def operators(symbol: Any) -> list[str]:
    """Return the operators of a graph in their order; a PReLU is called by its own name."""
    found = [node for node in to_json(symbol)["nodes"] if node["op"] != "null"]
    return [
        "PReLU" if node.get("attrs", {}).get("act_type") == "prelu" else node["op"]
        for node in found
    ]


def step(symbol: Any, plain: Any, shape: tuple[int, ...], weights: Optional[Any] = None) -> Arrays:
    """Return what a training step of a form of ``plain`` computes.

    Its output, the gradients of images and parameters, and running statistics.
    """
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
    found = {"output": output, "data": data.grad}
    for name, parameter in network.parameters.items():
        found[name] = parameter.data() if parameter.grad_req == "null" else parameter.grad()
    return {name: array.asnumpy() for name, array in found.items()}


def compare(plain: Any, fast: Any, shape: tuple[int, ...], weights: Optional[Any] = None) -> None:
    """Assert that a graph has the parameters of another and computes the same steps."""
    assert sorted(fast.list_arguments()) == sorted(plain.list_arguments())
    assert fast.list_outputs() == plain.list_outputs()
    found, expected = (step(one, plain, shape, weights) for one in (fast, plain))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        limit = 1e-4 * np.abs(array).max() + 1e-6
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=limit, err_msg=name)
