"""Products of maps and numbers for each are the same by a linear layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backbones.graph.nodes import to_json
from backbones.graph.onednn import products
from runtime.mxnet import mx


def rewritten(maps: tuple[int, ...], factors: tuple[int, ...]) -> list[Any]:
    """The plain graph and the other one, of shapes for one image that they do not know."""
    variables = mx.sym.var("data"), mx.sym.var("factors", shape=factors)
    plain = mx.sym.broadcast_mul(*variables, name="product")
    graphs = plain, products.rewrite(plain, maps)
    return [mx.sym.load_json(one.tojson().replace('"__shape__"', '"a"')) for one in graphs]


# Of one image, and of as many as the graph does not know.
@pytest.mark.parametrize("images", [1, 5])
def test_a_number_for_each_map(images: int) -> None:
    plain, fast = rewritten((1, 3, 4, 2), (1, 3, 1, 1))
    assert "broadcast_mul" not in [node["op"] for node in to_json(fast)["nodes"]]
    assert fast.list_outputs() == plain.list_outputs()
    generator = np.random.default_rng(0)
    shapes = {"data": (images, 3, 4, 2), "factors": (images, 3, 1, 1)}
    given = {name: mx.nd.array(generator.normal(size=shape)) for name, shape in shapes.items()}
    results = []
    for symbol in (plain, fast):
        for array in given.values():
            array.attach_grad()
        with mx.autograd.record():
            output = mx.nd.CachedOp(symbol)(*(given[name] for name in symbol.list_inputs()))
        output.backward(mx.nd.array(np.arange(output.size).reshape(output.shape)))
        results.append([output, *(array.grad.copy() for array in given.values())])
    for expected, found in zip(*results):
        np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("maps", "factors"),
    [((1, 3, 1, 1), (1, 3, 1, 1)), ((1, 3, 4, 4), (1, 1, 4, 4)), ((1, 3), (1, 1))],
)
def test_other_products_are_mxnets(maps: tuple[int, ...], factors: tuple[int, ...]) -> None:
    _, fast = rewritten(maps, factors)
    assert [node["op"] for node in to_json(fast)["nodes"]] == ["null", "null", "broadcast_mul"]
