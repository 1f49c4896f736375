"""The graph for inference on a CPU computes what the plain one computes, with fewer operators."""

from __future__ import annotations

from collections import Counter
from typing import Any, Optional

import numpy as np
import pytest

from backbones.graph.nodes import from_json, to_json
from backbones.graph.onednn import folding, form
from backbones.graph.onednn.folding import fold
from backbones.graph.onednn.prelu import STEEPNESS
from backbones.inference import HostInference
from backbones.network import Network
from runtime.environment import Bfloat16Unit
from runtime.mxnet import mx
from tests.backbones.passes import DATA, act, conv, norm, operators

IMAGES = np.random.default_rng(7).integers(0, 256, (2, 3, 6, 5), dtype=np.uint8)
Slopes = Optional[list[float]]


@pytest.fixture(autouse=True)
def avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any processor as many channels at once as AVX-512 has."""
    monkeypatch.setattr(form, "channel_block", lambda: 16)


def made_up(symbol: Any, slopes: Slopes = None) -> dict[str, np.ndarray]:
    """Weights as after training, slopes of PReLUs of either sign and above 1."""
    generator = np.random.default_rng(3)
    arguments, _, auxiliary = symbol.infer_shape(data=(1, *IMAGES.shape[1:]))
    names = symbol.list_arguments() + symbol.list_auxiliary_states()
    made = {}
    for name, shape in zip(names, arguments + auxiliary):
        # Maps of either sign, as a PReLU has to be told apart from what it does above 0.
        low, high = (-1.0, 1.0) if name.endswith(("weight", "kernel")) else (-0.5, 1.5)
        low, high = (0.5, 2.0) if name.endswith("var") else (low, high)
        made[name] = generator.uniform(low, high, shape).astype(np.float32)
        if name.startswith("relu") and slopes:
            made[name] = np.array(slopes, np.float32)
    del made["data"]
    return made


def folded(symbol: Any, slopes: Slopes = None, dtype: str = "float32") -> tuple[Any, Any]:
    return fold(symbol, made_up(symbol, slopes), IMAGES.shape[1:], dtype)


def inner_nodes(symbol: Any) -> list[dict[str, Any]]:
    """The operators of a graph, those inside joined ones in place of these."""
    outer = [node.get("subgraphs", [{"nodes": [node]}]) for node in to_json(symbol)["nodes"]]
    nodes = [part for graphs in outer for graph in graphs for part in graph["nodes"]]
    return [node for node in nodes if node["op"] != "null"]


def check(symbol: Any, slopes: Slopes = None) -> Counter[str]:
    """Compare a graph's outputs with those of its folded form; returns its operators."""
    weights = made_up(symbol, slopes)
    before = {name: value.copy() for name, value in weights.items()}
    given = {name: mx.nd.array(value) for name, value in weights.items()}
    expected = Network(symbol, symbol, given, mx.cpu()).extract(IMAGES)
    found = HostInference(symbol, weights)(IMAGES)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    for name, value in weights.items():
        np.testing.assert_array_equal(value, before[name])
    return Counter(node["op"] for node in inner_nodes(folded(symbol, slopes)[0]))


PIXELS = DATA * 0.0078125
CONV = conv(PIXELS, "conv", 4)
LINEAR = mx.sym.FullyConnected(CONV, num_hidden=4, name="fc", no_bias=True)


@pytest.mark.parametrize(("layer", "settings"), [
    (CONV, {"eps": 0.25}),
    (conv(PIXELS, "conv", 4, no_bias=True), {"fix_gamma": True}),
    (conv(PIXELS, "conv", 6, num_group=3), {}),
    (LINEAR, {"eps": 0.25}),
    (norm(CONV, "another"), {"fix_gamma": True}),
])
def test_a_batch_norm_goes_into_the_layer_before_it(layer: Any, settings: Any) -> None:
    # MXNet's defaults are those of a BatchNorm without attributes.
    for one in (norm(layer, **settings), mx.sym.BatchNorm(layer, name="bn")):
        found = check(one)
        assert found["BatchNorm"] == 0 and found["Convolution"] == 1


KERNEL = mx.sym.var("kernel", shape=(3, 3, 3, 3))
SAME = {"weight": KERNEL, "no_bias": True}
FIRST = conv(PIXELS, "a", 3, **SAME)
NAMES = "gamma", "beta", "moving_mean", "moving_var"
SHARED = {name: mx.sym.var(f"own_{name}") for name in NAMES}
BENT = act(CONV, "tanh")
OTHER = conv(CONV, "conv2", 4)
MEAN = mx.sym.mean(CONV, axis=(2, 3), keepdims=True)
TWICE = mx.sym.Concat(CONV, CONV)
SLOPES = [0.25, -1.5, 2.0, 0.0]
# One convolution of one pixel, joined with the sum; none for the linear part.
SCALED = {"Convolution": 2, "LeakyReLU": 1, "elemwise_add": 1, "BatchNorm": 0, "Activation": 0}
# Equal slopes are one number.
LEAKY = {"Convolution": 1, "LeakyReLU": 1, "elemwise_add": 0, "BatchNorm": 0}


@pytest.mark.parametrize(("symbol", "slopes", "expected"), [
    # Of two consumers, the other one needs the convolution as it is.
    (norm(CONV) + CONV, None, {"BatchNorm": 1}),
    (norm(CONV, "a") + norm(CONV, "b"), None, {"BatchNorm": 2}),
    # Not behind a layer, of the pixels, along another axis, of a kernel that is computed.
    (norm(BENT), None, {"BatchNorm": 1}),
    (norm(PIXELS), None, {"BatchNorm": 1}),
    (norm(CONV, axis=3), None, {"BatchNorm": 1}),
    (norm(conv(PIXELS, "a", 3, weight=2 * KERNEL, no_bias=True)), None, {"BatchNorm": 1}),
    # What two layers share is folded for each.
    (norm(conv(norm(FIRST), "b", 3, **SAME), "n"), None, {"BatchNorm": 0}),
    (norm(conv(norm(CONV, "a", **SHARED), "c", 4), "b", **SHARED), None, {"BatchNorm": 0}),
    # Sums of other names are joined, unless they broadcast.
    (mx.sym.broadcast_add(OTHER, CONV), None, {"elemwise_add": 1}),
    (mx.sym.broadcast_add(OTHER, MEAN), None, {"broadcast_add": 1}),
    # A PReLU scales the layer before it, or a BatchNorm that stays.
    (act(norm(CONV), "prelu"), SLOPES, SCALED),
    (act(norm(TWICE), "prelu"), 2 * SLOPES, {**SCALED, "BatchNorm": 1}),
    (act(norm(TWICE, fix_gamma=True), "prelu"), 2 * SLOPES, {**SCALED, "BatchNorm": 1}),
    # Not where the layer is used again, or there is none, or a slope is steep.
    (act(CONV, "prelu") + CONV, SLOPES, {"Activation": 1}),
    (act(BENT, "prelu"), SLOPES, {"Activation": 2}),
    (act(CONV, "prelu"), [0.25, -STEEPNESS, 0.5, 0.5], {"Activation": 1}),
    (act(norm(CONV), "prelu"), [0.25] * 4, LEAKY),
    (act(CONV, "prelu"), [-2.0], LEAKY),
])
def test_what_else_is_folded_and_what_stays(symbol: Any, slopes: Slopes, expected: Any) -> None:
    found = check(symbol, slopes)
    assert {op: found[op] for op in expected} == expected


def test_outputs_and_prelus_of_vectors_and_of_what_is_no_number_stay() -> None:
    assert operators(folded(mx.sym.Group([norm(CONV), CONV]))[0]).count("BatchNorm") == 1
    for x, slopes in ((LINEAR, None), (CONV, [0.25, float("nan"), 0.5, 0.5])):
        assert "PReLU" in operators(folded(act(x, "prelu"), slopes)[0])


@pytest.mark.parametrize(("block", "filled"), [(8, 24), (16, 32)])
def test_channels_fill_blocks(block: int, filled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "channel_block", lambda: block)
    # A sum with what has channels of its own number, so that the padding has to end there.
    shift = mx.sym.mean(PIXELS, axis=(1, 2, 3), keepdims=True)
    symbol = mx.sym.broadcast_add(conv(CONV, "wide", 20), shift)
    assert folded(symbol)[1]["wide_bias_padded"].shape == (filled,)
    check(symbol)


@pytest.mark.parametrize(("block", "dtype", "parts"), [
    (16, "float32", {"wide_from0", "wide_from144"}),
    (8, "float32", {"wide"}),
    (16, "bfloat16", {"wide"}),
])
def test_many_channels_over_short_rows_are_in_parts(block, dtype, parts, monkeypatch) -> None:
    monkeypatch.setattr(form, "channel_block", lambda: block)
    monkeypatch.setattr(form, "bfloat16_unit", lambda: Bfloat16Unit.VECTORS)
    symbol = conv(conv(PIXELS, "few", 288, stride=(2, 2), pad=(0, 0)), "wide", 16)
    nodes = inner_nodes(folded(symbol, dtype=dtype)[0])
    names = {node["name"] for node in nodes if node["op"] == "Convolution"}
    assert {name for name in names if name.startswith("wide")} == parts
    check(symbol)


def test_what_depends_on_parameters_alone_is_computed_once() -> None:
    kernel, k = mx.sym.var("kernel"), mx.nd.array(np.arange(12).reshape(3, 4))
    doubled = mx.sym.identity(2 * kernel + mx.sym.ones((3, 4)), name="doubled")
    y = mx.sym.elemwise_add(mx.sym.dot(DATA, doubled), mx.sym.dot(DATA, doubled * doubled))
    y = mx.sym.broadcast_add(y, mx.sym.var("shift"), name="last")
    given = {"kernel": k, "shift": mx.nd.array([[1, 2, 3, 4]]), "unused": mx.nd.ones(1)}
    graph, left = folding._without_constants(y, given)
    symbol, images = from_json(graph), mx.nd.array([[1, 2, 3], [4, 5, 6]])
    assert sorted(operators(symbol)) == ["broadcast_add", "dot", "dot", "elemwise_add"]
    # The shift as it is, and two that were computed.
    assert len(left) == 3 and "shift" in left and "kernel" not in left
    inputs = {"data": images, **left}
    found = mx.nd.CachedOp(symbol)(*(inputs[name] for name in symbol.list_inputs()))
    w = 2 * k.asnumpy() + 1
    assert np.array_equal(found.asnumpy(), images.asnumpy() @ (w + w * w) + [1, 2, 3, 4])
    # Without constants, and without parameters.
    graph, left = folding._without_constants(mx.sym.dot(DATA, kernel), {"kernel": k})
    assert [node["op"] for node in graph["nodes"]] == ["null", "null", "dot"]
    assert graph["heads"] == [[2, 0, 0]] and left == {"kernel": k}
    _, left = folding._without_constants(mx.sym.broadcast_add(DATA, mx.sym.ones((1, 2))), {})
    (value,) = left.values()
    assert value.asnumpy().tolist() == [[1, 1]]
