"""Convolutions joined with sums and activations, or divided over short rows, compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backbones.graph.nodes import first_shapes, from_json, to_json
from backbones.graph.onednn.joining import divide, join
from runtime.mxnet import mx
from tests.backbones.passes import DATA, act, conv, nodes_of

SHAPE = (2, 3, 5, 4)


def weights(symbol: Any, shape: tuple[int, ...] = SHAPE) -> dict[str, Any]:
    generator = np.random.default_rng(1)
    shapes, _, _ = symbol.infer_shape(data=shape)
    sizes = sorted(zip(symbol.list_arguments(), shapes))
    return {name: mx.nd.array(generator.normal(size=size)) for name, size in sizes}


def assert_equal_outputs(fast: Any, own: dict[str, Any], plain: Any, given: dict[str, Any]) -> None:
    """Compare the outputs of the second of two calls, as ``HostInference`` makes them.

    From its second call on, an operator uses the kernel and the primitive that it keeps.
    """
    found = []
    for symbol, values in ((fast, own), (plain, given)):
        inputs = [values[name] for name in symbol.list_inputs()]
        operator = mx.nd.CachedOp(symbol, (("static_alloc", True), ("static_shape", True)))
        for _ in range(2):
            outputs = operator(*inputs)
        found.append(outputs if isinstance(outputs, list) else [outputs])
    for one, other in zip(*found, strict=True):
        limit = 1e-4 * max(1, np.abs(other.asnumpy()).max())
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-4, atol=limit)


def parts(symbol: Any) -> list[str]:
    """The operators of a graph; of a joined one, those inside it."""
    inner = [node.get("subgraphs", [{"nodes": [node]}])[0] for node in to_json(symbol)["nodes"]]
    names = [[one["op"] for one in each["nodes"] if one["op"] != "null"] for each in inner]
    return ["+".join(some) for some in names if some]


C0 = conv(DATA, "c0")
C1 = conv(C0, "c1")
ODD = conv(DATA, "c0", 6)
C, BOTH, RELU = "Convolution", "Convolution+elemwise_add", "Convolution+Activation"


@pytest.mark.parametrize(("symbol", "expected"), [
    (act(C0), [RELU]),
    (act(C1 + C0), [C, BOTH + "+Activation"]),
    (act(C0 + C1, "leaky"), [C, BOTH + "+LeakyReLU"]),
    (act(C1) + C0, [C, RELU, "elemwise_add"]),
    (act(act(C0)), ["Activation", RELU]),
    # With its own input; with itself.
    (conv(DATA, "c0", 3) + DATA, [BOTH]),
    (C0 + C0, [C, "elemwise_add"]),
    (conv(ODD, "c1", 6, num_group=6) + ODD, [C, BOTH]),
    # Needed by another; the first may not write over what the second adds to.
    (mx.sym.Concat(act(C0), C0), ["Activation", "Concat", C]),
    (mx.sym.Concat(C1 + C0, conv(C1, "c2") + C0), ["Concat", C, C, BOTH, "elemwise_add"]),
    (mx.sym.Group([C0, act(C0)]), ["Activation", C]),
])
def test_joined_operators_compute_the_same(symbol: Any, expected: list[str]) -> None:
    found, values = from_json(join(to_json(symbol))), weights(symbol)
    assert sorted(parts(found)) == expected
    assert_equal_outputs(found, values, symbol, values)


# Of 300 channels; a convolution of it is divided.
W0 = conv(DATA, "c0", 300)
W1 = conv(W0, "c1", 300)
WIDE = conv(DATA, "c0", 600)
STRIDED = conv(W0, "c1", 300, stride=(2, 2), no_bias=True)
ROW = mx.sym.Reshape(W0, shape=(0, 0, -1))
HALVES = {"c1_from0": 150, "c1_from150": 150}


def divided(symbol: Any, values: dict[str, Any], size: tuple[int, int]) -> tuple[Any, Any]:
    graph, found = divide(to_json(symbol), values, first_shapes(symbol, (1, 3, *size)))
    return from_json(graph), found


@pytest.mark.parametrize(("symbol", "channels"), [
    (conv(WIDE, "c1", 8), {f"c1_from{i}": 200 for i in (0, 200, 400)}),
    (conv(conv(DATA, "c0", 301), "c1", 8), {"c1_from0": 151, "c1_from151": 150}),
    (STRIDED, HALVES),
    # Added to another one, to another that is divided, to itself.
    (act(W1 + W0), HALVES),
    (W1 + conv(W0, "c2", 300), {"c1_from0": 150, "c2_from150": 150}),
    (W1 + W1, HALVES),
    (conv(act(W1), "c2", 300), {"c2_from150": 150}),
    (mx.sym.Group([W1, act(W1)]), HALVES),
    # Not of fewer channels, of one pixel, of one dimension, of groups.
    (conv(conv(DATA, "c0", 256), "c1", 300), {"c1": 256}),
    (conv(W0, "c1", 300, 1), {"c1": 300}),
    (conv(ROW, "c1", 300, kernel=(3,), pad=(1,)), {"c1": 300}),
    (conv(WIDE, "c1", 600, num_group=2), {"c1": 300}),
])
def test_parts_add_up_to_the_whole(symbol: Any, channels: dict[str, int]) -> None:
    given = weights(symbol)
    found, values = divided(symbol, given, SHAPE[2:])
    for name, count in channels.items():
        kernel = nodes_of(found)[name]["inputs"][1][0]
        assert values[to_json(found)["nodes"][kernel]["name"]].shape[1] == count
    assert ("c1_weight" in found.list_inputs()) != any("_from" in name for name in channels)
    assert_equal_outputs(found, values, symbol, given)


def test_what_is_added_to_parts_and_which_rows_are_short() -> None:
    """Every sum is one that oneDNN computes with a convolution."""
    nodes = to_json(divided(W1 + W0, weights(W1 + W0), SHAPE[2:])[0])["nodes"]
    sums = [nodes[node["inputs"][0][0]] for node in nodes if node["op"] == "elemwise_add"]
    assert [node["op"] for node in sums] == ["Convolution"] * 2
    assert all("_from" in node["name"] for node in sums)
    # Rows of the output count: oneDNN multiplies these.
    for symbol, size, is_divided in ((W1, (4, 5), 0), (W1, (3, 1), 1), (STRIDED, (8, 8), 1)):
        _, values = divided(symbol, weights(symbol, (1, 3, *size)), size)
        assert ("c1_from0_weight" in values) == is_divided
