"""Graphs begin with a subtraction and a product, as InsightFace's client wants to see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backbones
from evaluation.export.graph import Form
from runtime.mxnet import mx
from tests.support.onnx_networks import by_mxnet, by_onnx, drawn, exported

sym = mx.sym
IMAGES = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)


def normalizes_itself(model: Any) -> bool:
    """What insightface's ArcFaceONNX finds; then it takes mean 0 and deviation 1, else 127.5."""
    names = [node.name for node in model.graph.node[:8]]
    has_difference = any(name.startswith(("Sub", "_minus")) for name in names)
    return has_difference and any(name.startswith(("Mul", "_mul")) for name in names)


def hard_swish(x: Any) -> Any:
    """Its nodes have names that the client looks for."""
    x = sym.BatchNorm(x, name="bn_data")
    return x * sym.clip(x + 3, 0, 6) / 6 - 1


CASES: dict[str, Callable[[Any], Any]] = {
    "InsightFace's": lambda x: (x - 127.5) * 0.0078125,
    "arcface_torch's": lambda x: (x / 255.0 - 0.5) / 0.5,
    "per channel": lambda x: sym.image.normalize(x / 255.0, (0.5, 0.4, 0.3), (0.2, 0.21, 0.22)),
    "a BatchNorm": lambda x: sym.BatchNorm(x, name="bn_data"),
    "none": lambda x: x,
    "a product": lambda x: x * 0.01,
    "a quotient of 255": lambda x: x / 255.0,
    "a difference": lambda x: x - 100.0,
    "a sum and a cast": lambda x: sym.Cast(sym.identity(x + 3.0), dtype="float32"),
    "reversed": lambda x: 255.0 - x,
    "a zero": lambda x: (x * 0.0) + 1.0,
    "others after it": hard_swish,
    "two readers": lambda x: x * 0.01 + sym.sqrt(x + 1.0),
    "two readers of scaled pixels": lambda x: hard_swish((x - 127.5) * 0.01),
}


@pytest.mark.parametrize("case", CASES)
def test_the_client_hands_over_pixels_as_they_are(case: str) -> None:
    """And gets what MXNet gives."""
    x = CASES[case](sym.var("data"))
    x = sym.Convolution(x, num_filter=4, kernel=(3, 3), pad=(1, 1), name="conv0")
    found = drawn(sym.FullyConnected(x, num_hidden=5, name="fc1"), (3, 8, 8))
    expected = by_mxnet(found, IMAGES)
    for form, limit in ((Form(), 1e-5), (Form(takes_bytes=True), 1e-5), (Form("float16"), 1e-2)):
        model = exported(found, form)
        assert normalizes_itself(model)
        assert np.abs(by_onnx(model, IMAGES) - expected).max() <= limit * np.abs(expected).max()


def test_pixels_that_nothing_is_done_to_stay_exact() -> None:
    """A weight of one, so that the result is the pixels."""
    found = drawn(sym.FullyConnected(sym.var("data"), num_hidden=192, name="fc1"), (3, 8, 8))
    found.weights["fc1_weight"][:] = np.eye(192)
    found.weights["fc1_bias"][:] = 0
    features = by_onnx(exported(found), IMAGES)
    np.testing.assert_array_equal(features, IMAGES.reshape(4, -1).astype(np.float32))


def test_the_two_nodes_are_ours_exactly() -> None:
    graph = exported(drawn(backbones.build("tiny"), (3, 112, 112))).graph
    first, second = graph.node[:2]
    assert (first.op_type, second.op_type) == ("Sub", "Mul")
    constants = {one.name: np.frombuffer(one.raw_data, "f4") for one in graph.initializer}
    assert constants[first.input[1]] == 127.5 and constants[second.input[1]] == 0.0078125
    # Constants are no nodes, of which the client would count eight.
    assert not [node for node in graph.node if node.op_type == "Constant"]
