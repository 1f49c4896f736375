"""What depends on parameters alone is computed once, and the rest gives the same."""

from __future__ import annotations

import numpy as np

from backbones.graph.nodes import from_json
from backbones.graph.onednn import constants
from runtime.mxnet import mx

DATA, KERNEL = mx.sym.var("data"), mx.sym.var("kernel")


def test_only_what_depends_on_the_input_is_left() -> None:
    doubled = mx.sym.identity(2 * KERNEL + mx.sym.ones((3, 4)), name="doubled")
    y = mx.sym.elemwise_add(mx.sym.dot(DATA, doubled), mx.sym.dot(DATA, doubled * doubled))
    y = mx.sym.broadcast_add(y, mx.sym.var("shift"), name="last")
    values = {
        "kernel": mx.nd.array(np.arange(12).reshape(3, 4)),
        "shift": mx.nd.array([[1, 2, 3, 4]]),
        "unused": mx.nd.ones(1),
    }
    images = mx.nd.array([[1, 2, 3], [4, 5, 6]])
    nodes, heads, left = constants.compute(y, values)
    operators = [node["op"] for node in nodes if node["op"] != "null"]
    assert sorted(operators) == ["broadcast_add", "dot", "dot", "elemwise_add"]
    # The shift as it is, and two that were computed.
    assert len(left) == 3 and "shift" in left and "kernel" not in left
    symbol = from_json(nodes, heads, None)
    given = {"data": images, **left}
    found = mx.nd.CachedOp(symbol)(*(given[name] for name in symbol.list_inputs()))
    w = 2 * np.arange(12).reshape(3, 4) + 1
    assert np.array_equal(found.asnumpy(), images.asnumpy() @ (w + w * w) + [1, 2, 3, 4])


def test_graphs_without_constants_or_without_parameters() -> None:
    kernel = mx.nd.ones((2, 2))
    nodes, heads, left = constants.compute(mx.sym.dot(DATA, KERNEL), {"kernel": kernel})
    assert [node["op"] for node in nodes] == ["null", "null", "dot"]
    assert heads == [[2, 0, 0]] and left == {"kernel": kernel}
    nodes, _, left = constants.compute(mx.sym.broadcast_add(DATA, mx.sym.ones((1, 2))), {})
    assert [node["op"] for node in nodes] == ["null", "null", "broadcast_add"]
    (value,) = left.values()
    assert value.asnumpy().tolist() == [[1, 1]]
