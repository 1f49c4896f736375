"""The graph for inference on a CPU computes what the plain one computes, with fewer operators."""

from __future__ import annotations

from collections import Counter
from typing import Any, Optional

import numpy as np
import pytest

from backbones.graph.nodes import from_json, to_json
from backbones.graph.onednn import constants, form
from backbones.graph.onednn.folding import fold
from backbones.graph.onednn.prelu import STEEPNESS
from backbones.inference import HostInference
from backbones.network import Network
from runtime.environment import Bfloat16Unit
from runtime.mxnet import mx

IMAGES = np.random.default_rng(7).integers(0, 256, (2, 3, 6, 5), dtype=np.uint8)
Slopes = Optional[list[float]]


@pytest.fixture(autouse=True)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The channels that are computed at once, on any processor: those of AVX-512 or a parameter."""
    channels: int = getattr(request, "param", 16)
    monkeypatch.setattr(form, "channel_block", lambda: channels)
    return channels


def values(symbol: Any, slopes: Slopes = None, size: Any = (6, 5)) -> dict[str, np.ndarray]:
    """Weights as after training, slopes of PReLUs of either sign and above 1."""
    generator = np.random.default_rng(3)
    arguments, _, auxiliary = symbol.infer_shape(data=(1, 3, *size))
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


def inner_nodes(symbol: Any) -> list[dict[str, Any]]:
    """The operators of a graph, those inside joined ones in place of these."""
    outer = [node.get("subgraphs", [{"nodes": [node]}]) for node in to_json(symbol)["nodes"]]
    nodes = [part for graphs in outer for graph in graphs for part in graph["nodes"]]
    return [node for node in nodes if node["op"] != "null"]


def count(symbol: Any) -> Counter[str]:
    return Counter(node["op"] for node in inner_nodes(symbol))


def check(symbol: Any, slopes: Slopes = None) -> Counter[str]:
    """Compare a graph's outputs with those of its folded form; returns its operators."""
    weights = values(symbol, slopes)
    before = {name: value.copy() for name, value in weights.items()}
    given = {name: mx.nd.array(value) for name, value in weights.items()}
    expected = Network(symbol, symbol, given, mx.cpu()).extract(IMAGES)
    found = HostInference(symbol, weights)(IMAGES)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    for name, value in weights.items():
        np.testing.assert_array_equal(value, before[name])
    return count(fold(symbol, weights, IMAGES.shape[1:])[0])


def convolved(x: Any, name: str, channels: int = 4, **settings: Any) -> Any:
    sizes = {"kernel": (3, 3), "pad": (1, 1), "num_filter": channels}
    return mx.sym.Convolution(x, **{**sizes, **settings}, name=name)


def normalized(x: Any, name: str = "bn", **settings: Any) -> Any:
    return mx.sym.BatchNorm(x, **{"fix_gamma": False, **settings}, name=name)


def prelu(x: Any, name: str = "relu0") -> Any:
    return mx.sym.LeakyReLU(x, act_type="prelu", name=name)


DATA = mx.sym.var("data") * 0.0078125
CONV = convolved(DATA, "conv")


def linear(x: Any, channels: int = 5, **settings: Any) -> Any:
    return mx.sym.FullyConnected(x, num_hidden=channels, name="fc", **settings)


@pytest.mark.parametrize(
    ("layer", "settings"),
    [
        (CONV, {"eps": 0.25}),
        (convolved(DATA, "conv", no_bias=True), {"fix_gamma": True}),
        (convolved(DATA, "conv", num_filter=6, num_group=3), {}),
        (linear(CONV, no_bias=True), {"eps": 0.25}),
        (normalized(CONV, "another"), {"fix_gamma": True}),
    ],
)
def test_a_batch_norm_goes_into_the_layer_before_it(layer: Any, settings: Any) -> None:
    # MXNet's defaults are those of a BatchNorm without attributes.
    for norm in (normalized(layer, **settings), mx.sym.BatchNorm(layer, name="bn")):
        found = check(norm)
        assert found["BatchNorm"] == 0 and found["Convolution"] == 1


KERNEL = mx.sym.var("kernel", shape=(3, 3, 3, 3))
SAME = {"weight": KERNEL, "no_bias": True}
FIRST = convolved(DATA, "a", 3, **SAME)
SHARED = {
    name: mx.sym.var(f"bn_{name[-4:]}") for name in ("gamma", "beta", "moving_mean", "moving_var")
}


@pytest.mark.parametrize(
    ("symbol", "left"),
    [
        # Of two consumers, the other one needs the convolution as it is.
        (normalized(CONV) + CONV, 1),
        (normalized(CONV, "a") + normalized(CONV, "b"), 2),
        # Not behind a layer, of the pixels, along another axis, of a kernel that is computed.
        (normalized(mx.sym.Activation(CONV, act_type="tanh")), 1),
        (normalized(DATA), 1),
        (normalized(CONV, axis=3), 1),
        (normalized(convolved(DATA, "a", 3, weight=2 * KERNEL, no_bias=True)), 1),
        # What two layers share is folded for each.
        (normalized(convolved(normalized(FIRST), "b", 3, **SAME), "n"), 0),
        (normalized(convolved(normalized(CONV, "a", **SHARED), "conv2"), "b", **SHARED), 0),
    ],
)
def test_batch_norms_that_stay(symbol: Any, left: int) -> None:
    assert check(symbol)["BatchNorm"] == left


def test_an_output_stays_and_sums_of_other_names_are_joined_unless_they_broadcast() -> None:
    symbol = mx.sym.Group([normalized(CONV), CONV])
    folded, _ = fold(symbol, values(symbol), IMAGES.shape[1:])
    assert count(folded)["BatchNorm"] == 1
    shift = mx.sym.mean(CONV, axis=(2, 3), keepdims=True)
    other = convolved(CONV, "conv2")
    assert check(mx.sym.broadcast_add(other, CONV))["elemwise_add"] == 1
    assert check(mx.sym.broadcast_add(other, shift))["broadcast_add"] == 1


SLOPES = [0.25, -1.5, 2.0, 0.0]


def test_a_prelu_scales_the_layer_before_it() -> None:
    """One convolution of one pixel, joined with the sum; none for the linear part."""
    found = check(prelu(normalized(CONV)), SLOPES)
    assert found == {"_mul_scalar": 1, "Convolution": 2, "LeakyReLU": 1, "elemwise_add": 1}
    # Or a BatchNorm that stays.
    for fixed in (True, False):
        x = normalized(mx.sym.Concat(CONV, CONV), fix_gamma=fixed)
        found = check(prelu(x), SLOPES + SLOPES)
        assert found["Convolution"] == 2 and found["BatchNorm"] == 1
    # Not where the layer is used again, or there is none, or a slope is steep.
    for symbol, slopes in (
        (prelu(CONV) + CONV, SLOPES),
        (prelu(mx.sym.Activation(CONV, act_type="tanh")), SLOPES),
        (prelu(CONV), [0.25, -STEEPNESS, 0.5, 0.5]),
    ):
        assert check(symbol, slopes)["Activation"] >= 1
    # Equal slopes are one number.
    found = check(prelu(normalized(CONV)), [0.25] * 4)
    assert found == {"_mul_scalar": 1, "Convolution": 1, "LeakyReLU": 1}
    assert check(prelu(CONV), [-2.0])["Convolution"] == 1
    # Those of vectors, and of what is no number, stay.
    odd = [0.25, float("nan"), 0.5, 0.5]
    for x, given in ((prelu(linear(CONV, 4)), None), (prelu(CONV), odd)):
        assert "prelu" in fold(x, values(x, given), IMAGES.shape[1:])[0].tojson()


@pytest.mark.parametrize(("block", "filled"), [(8, 24), (16, 32)], indirect=["block"])
def test_channels_fill_blocks(block: int, filled: int) -> None:
    # A sum with what has channels of its own number, so that the padding has to end there.
    shift = mx.sym.mean(DATA, axis=(1, 2, 3), keepdims=True)
    symbol = mx.sym.broadcast_add(convolved(CONV, "wide", 20), shift)
    _, own = fold(symbol, values(symbol), IMAGES.shape[1:])
    assert own["wide_bias_padded"].shape == (filled,)
    check(symbol)


@pytest.mark.parametrize(
    ("block", "dtype", "parts"),
    [
        (16, "float32", {"wide_from0", "wide_from144"}),
        (8, "float32", {"wide"}),
        (16, "bfloat16", {"wide"}),
    ],
    indirect=["block"],
)
def test_many_channels_over_short_rows_are_computed_in_parts(
    block: int, dtype: str, parts: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form, "bfloat16_unit", lambda: Bfloat16Unit.VECTORS)
    few = mx.sym.Convolution(DATA, num_filter=288, kernel=(3, 3), stride=(2, 2), name="few")
    symbol = convolved(few, "wide", 16)
    found = fold(symbol, values(symbol), IMAGES.shape[1:], dtype)[0]
    names = {node["name"] for node in inner_nodes(found) if node["op"] == "Convolution"}
    assert {name for name in names if name.startswith("wide")} == parts
    check(symbol)


# What depends on parameters alone is computed once.
X, K = mx.sym.var("data"), mx.sym.var("kernel")


def test_only_what_depends_on_the_input_is_left() -> None:
    doubled = mx.sym.identity(2 * K + mx.sym.ones((3, 4)), name="doubled")
    y = mx.sym.elemwise_add(mx.sym.dot(X, doubled), mx.sym.dot(X, doubled * doubled))
    y = mx.sym.broadcast_add(y, mx.sym.var("shift"), name="last")
    kernel = mx.nd.array(np.arange(12).reshape(3, 4))
    values = {"kernel": kernel, "shift": mx.nd.array([[1, 2, 3, 4]]), "unused": mx.nd.ones(1)}
    graph, left = constants.compute(y, values)
    operators = [node["op"] for node in graph["nodes"] if node["op"] != "null"]
    assert sorted(operators) == ["broadcast_add", "dot", "dot", "elemwise_add"]
    # The shift as it is, and two that were computed.
    assert len(left) == 3 and "shift" in left and "kernel" not in left
    symbol, images = from_json(graph), mx.nd.array([[1, 2, 3], [4, 5, 6]])
    given = {"data": images, **left}
    found = mx.nd.CachedOp(symbol)(*(given[name] for name in symbol.list_inputs()))
    w = 2 * np.arange(12).reshape(3, 4) + 1
    assert np.array_equal(found.asnumpy(), images.asnumpy() @ (w + w * w) + [1, 2, 3, 4])
    # Without constants, and without parameters.
    graph, left = constants.compute(mx.sym.dot(X, K), {"kernel": kernel})
    assert [node["op"] for node in graph["nodes"]] == ["null", "null", "dot"]
    assert graph["heads"] == [[2, 0, 0]] and left == {"kernel": kernel}
    _, left = constants.compute(mx.sym.broadcast_add(X, mx.sym.ones((1, 2))), {})
    (value,) = left.values()
    assert value.asnumpy().tolist() == [[1, 1]]
