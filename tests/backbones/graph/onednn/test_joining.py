"""Convolutions joined with sums and activations, or divided over short rows, compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backbones.graph.nodes import first_shapes, from_json, to_json
from backbones.graph.onednn.joining import join
from backbones.graph.onednn.short_rows import divide
from runtime.mxnet import mx


def parts(symbol: Any) -> list[str]:
    """The operators of a graph; of a joined one, those inside it."""
    found = []
    for node in to_json(symbol)["nodes"]:
        if node["op"] == "_sg_mkldnn_conv":
            inner = node["subgraphs"][0]["nodes"]
            found.append("+".join(part["op"] for part in inner if part["op"] != "null"))
        elif node["op"] != "null":
            found.append(node["op"])
    return found


def weights(symbol: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    generator = np.random.default_rng(1)
    shapes, _, _ = symbol.infer_shape(data=shape)
    sizes = sorted(zip(symbol.list_arguments(), shapes))
    return {name: mx.nd.array(generator.normal(size=size)) for name, size in sizes}


def run(symbol: Any, values: dict[str, Any]) -> list[np.ndarray]:
    """The outputs of the second of two calls, as ``HostInference`` makes them.

    From its second call on, an operator uses the kernel and the primitive that it keeps.
    """
    inputs = [values[name] for name in symbol.list_inputs()]
    operator = mx.nd.CachedOp(symbol, (("static_alloc", True), ("static_shape", True)))
    for _ in range(2):
        outputs = operator(*inputs)
    return [output.asnumpy() for output in (outputs if isinstance(outputs, list) else [outputs])]


def convolution(x: Any, name: str, channels: int = 8, **settings: Any) -> Any:
    return mx.sym.Convolution(
        x, num_filter=channels, **{"kernel": (3, 3), "pad": (1, 1), **settings}, name=name
    )


def relu(x: Any) -> Any:
    return mx.sym.Activation(x, act_type="relu")


def leaky(x: Any) -> Any:
    return mx.sym.LeakyReLU(x, act_type="leaky", slope=0.125)


DATA = mx.sym.var("data")
C0 = convolution(DATA, "c0")
C1 = convolution(C0, "c1")
ODD = convolution(DATA, "c0", 6)
BOTH = "Convolution+elemwise_add"

GRAPHS = {
    "relu": (relu(C0), ["Convolution+Activation"]),
    "sum and relu": (relu(C1 + C0), ["Convolution", BOTH + "+Activation"]),
    "sum and leaky": (leaky(C0 + C1), ["Convolution", BOTH + "+LeakyReLU"]),
    "relu, then a sum": (relu(C1) + C0, ["Convolution", "Convolution+Activation", "elemwise_add"]),
    "two relus": (relu(relu(C0)), ["Convolution+Activation", "Activation"]),
    "with its own input": (convolution(DATA, "c0", 3) + DATA, [BOTH]),
    "twice itself": (C0 + C0, ["Convolution", "elemwise_add"]),
    "of groups": (convolution(ODD, "c1", 6, num_group=6) + ODD, ["Convolution", BOTH]),
    "needed by another": (mx.sym.Concat(relu(C0), C0), ["Convolution", "Activation", "Concat"]),
    "a sum that is needed again": (
        # The first convolution may not write over what the second one adds to.
        mx.sym.Concat(C1 + C0, convolution(C1, "c2") + C0),
        ["Convolution", "Convolution", "elemwise_add", BOTH, "Concat"],
    ),
    "an output": (mx.sym.Group([C0, relu(C0)]), ["Convolution", "Activation"]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_joined_operators_compute_the_same(name: str) -> None:
    symbol, expected = GRAPHS[name]
    found, values = from_json(join(to_json(symbol))), weights(symbol, (2, 3, 5, 7))
    assert sorted(parts(found)) == sorted(expected)
    for one, other in zip(run(found, values), run(symbol, values), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


# Of 300 channels; a convolution of it is divided.
W0 = convolution(DATA, "c0", 300)
W1 = convolution(W0, "c1", 300)
WIDE = convolution(DATA, "c0", 600)
STRIDED = convolution(W0, "c1", 300, stride=(2, 2), no_bias=True)
ROW = mx.sym.Reshape(W0, shape=(0, 0, -1))
HALVES, SHAPE = {"c1_from0": 150, "c1_from150": 150}, (2, 3, 5, 4)

WIDE_GRAPHS = {
    "three parts": (convolution(WIDE, "c1", 8), {f"c1_from{i}": 200 for i in (0, 200, 400)}),
    "unequal parts": (
        convolution(convolution(DATA, "c0", 301), "c1", 8),
        {"c1_from0": 151, "c1_from151": 150},
    ),
    "without a bias": (STRIDED, HALVES),
    "added to another": (relu(W1 + W0), HALVES),
    "two that are added": (W1 + convolution(W0, "c2", 300), {"c1_from0": 150, "c2_from150": 150}),
    "added to itself": (W1 + W1, HALVES),
    "one behind the other": (convolution(relu(W1), "c2", 300), {"c2_from150": 150}),
    "an output": (mx.sym.Group([W1, relu(W1)]), HALVES),
    "of 256 channels": (convolution(convolution(DATA, "c0", 256), "c1", 300), {"c1": 256}),
    "of one pixel": (convolution(W0, "c1", 300, kernel=(1, 1), pad=(0, 0)), {"c1": 300}),
    "of one dimension": (convolution(ROW, "c1", 300, kernel=(3,), pad=(1,)), {"c1": 300}),
    "of groups": (convolution(WIDE, "c1", 600, num_group=2), {"c1": 300}),
}


def divided(symbol: Any, values: dict[str, Any], shape: tuple[int, ...]) -> tuple[Any, Any]:
    graph, found = divide(to_json(symbol), values, first_shapes(symbol, (1, *shape[1:])))
    return from_json(graph), found


def channels(symbol: Any, values: dict[str, Any]) -> dict[str, int]:
    """The input channels of the kernel of each convolution, by its name."""
    nodes = to_json(symbol)["nodes"]
    kernels = {n["name"]: nodes[n["inputs"][1][0]] for n in nodes if n["op"] == "Convolution"}
    return {name: values[kernel["name"]].shape[1] for name, kernel in kernels.items()}


@pytest.mark.parametrize("name", WIDE_GRAPHS)
def test_parts_add_up_to_the_whole(name: str) -> None:
    symbol, expected = WIDE_GRAPHS[name]
    given = weights(symbol, SHAPE)
    found, values = divided(symbol, given, SHAPE)
    assert expected.items() <= channels(found, values).items()
    assert ("c1_weight" in found.list_inputs()) != any("_from" in name for name in expected)
    for one, other in zip(run(found, values), run(symbol, given), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


def test_what_is_added_to_parts_and_which_rows_are_short() -> None:
    """Every sum is one that oneDNN computes with a convolution."""
    nodes = to_json(divided(W1 + W0, weights(W1 + W0, SHAPE), SHAPE)[0])["nodes"]
    sums = [nodes[node["inputs"][0][0]] for node in nodes if node["op"] == "elemwise_add"]
    assert [node["op"] for node in sums] == ["Convolution"] * 2
    assert all("_from" in node["name"] for node in sums)
    # Rows of the output count: oneDNN multiplies these.
    rows = [(W1, (4, 5), False), (W1, (3, 1), True), (STRIDED, (8, 8), True)]
    for symbol, size, is_divided in rows:
        shape = (1, 3, *size)
        _, values = divided(symbol, weights(symbol, shape), shape)
        assert ("c1_from0_weight" in values) == is_divided
