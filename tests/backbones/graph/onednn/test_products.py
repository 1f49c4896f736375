"""Products of maps and numbers for each are the same by a linear layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backbones.graph.nodes import first_shapes, to_json
from backbones.graph.onednn import products
from runtime.mxnet import mx


def gradients(symbol: Any, maps: np.ndarray, factors: np.ndarray) -> list[np.ndarray]:
    """The product, and the gradients of both."""
    arrays = {"data": mx.nd.array(maps), "factors": mx.nd.array(factors)}
    for array in arrays.values():
        array.attach_grad()
    run = mx.nd.CachedOp(symbol)
    with mx.autograd.record():
        output = run(*(arrays[name] for name in symbol.list_inputs()))
    output.backward(mx.nd.array(np.random.default_rng(1).normal(size=output.shape)))
    return [output.asnumpy(), *(array.grad.asnumpy() for array in arrays.values())]


def rewritten(maps: tuple[int, ...], factors: tuple[int, ...]) -> tuple[Any, Any]:
    """The plain graph and the other one, of shapes for one image."""
    variables = mx.sym.var("data"), mx.sym.var("factors", shape=factors)
    plain = mx.sym.broadcast_mul(*variables, name="product")
    return plain, products.rewrite(plain, first_shapes(plain, maps))


# Of one image, and of as many as the graph does not know.
@pytest.mark.parametrize("images", [1, 5])
def test_a_number_for_each_map(images: int) -> None:
    plain, fast = rewritten((1, 3, 4, 2), (1, 3, 1, 1))
    # The graph is told the shape of its variable; another one has it from its operators.
    fast = mx.sym.load_json(fast.tojson().replace('"__shape__": "(1, 3, 1, 1)"', '"a": "b"'))
    plain = mx.sym.load_json(plain.tojson().replace('"__shape__": "(1, 3, 1, 1)"', '"a": "b"'))
    assert "broadcast_mul" not in [node["op"] for node in to_json(fast)["nodes"]]
    assert fast.list_outputs() == plain.list_outputs()
    generator = np.random.default_rng(0)
    values = generator.normal(size=(images, 3, 4, 2)), generator.normal(size=(images, 3, 1, 1))
    for found, expected in zip(gradients(fast, *values), gradients(plain, *values)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("maps", "factors"),
    [((1, 3, 1, 1), (1, 3, 1, 1)), ((1, 3, 4, 4), (1, 1, 4, 4)), ((1, 3), (1, 1))],
)
def test_other_products_are_mxnets(maps: tuple[int, ...], factors: tuple[int, ...]) -> None:
    plain, fast = rewritten(maps, factors)
    assert [node["op"] for node in to_json(fast)["nodes"]] == ["null", "null", "broadcast_mul"]
