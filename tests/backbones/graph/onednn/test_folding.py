"""The graph for inference on a CPU computes what the plain one computes, with fewer operators."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Optional

import numpy as np
import pytest

import backbones
from backbones.graph.onednn import form
from backbones.graph.onednn.folding import fold
from backbones.graph.onednn.prelu import STEEPNESS
from backbones.inference import HostInference
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
        low, high = (0.5, 2.0) if name.endswith("var") else (-0.5, 1.5)
        made[name] = generator.uniform(low, high, shape).astype(np.float32)
        if name.startswith("relu") and slopes:
            made[name] = np.array(slopes, np.float32)
    del made["data"]
    return made


def run(symbol: Any, weights: dict[str, np.ndarray]) -> np.ndarray:
    """The output of the plain graph."""
    block = mx.gluon.SymbolBlock(symbol, mx.sym.var("data"))
    for name, parameter in block.collect_params().items():
        parameter.shape = weights[name].shape
        parameter.initialize()
        parameter.set_data(mx.nd.array(weights[name]))
    output: np.ndarray = block(mx.nd.array(IMAGES, dtype="float32")).asnumpy()
    return output


def count(symbol: Any) -> Counter[str]:
    """The operators of a graph, those inside joined ones as well."""
    nodes = json.loads(symbol.tojson())["nodes"]
    inner = [part for node in nodes for part in node.get("subgraphs", [{}])[0].get("nodes", [])]
    outer = [node for node in nodes if not node["op"].startswith("_sg")]
    return Counter(node["op"] for node in [*outer, *inner] if node["op"] != "null")


def check(symbol: Any, slopes: Slopes = None) -> Counter[str]:
    """Compare a graph's outputs with those of its folded form; returns its operators."""
    weights = values(symbol, slopes)
    before = {name: value.copy() for name, value in weights.items()}
    expected, found = run(symbol, weights), HostInference(symbol, weights)(IMAGES)
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


@pytest.mark.parametrize("settings", [{}, {"fix_gamma": True}, {"eps": 0.25}])
@pytest.mark.parametrize("layer", [{}, {"no_bias": True}, {"num_filter": 6, "num_group": 3}])
def test_a_batch_norm_goes_into_the_convolution_before_it(settings: Any, layer: Any) -> None:
    found = check(normalized(convolved(DATA, "conv", **layer), **settings))
    assert found["BatchNorm"] == 0 and found["Convolution"] == 1


def test_mxnets_defaults_are_those_of_a_batch_norm_without_attributes() -> None:
    symbol = mx.sym.BatchNorm(CONV, name="bn")
    graph = json.loads(symbol.tojson())
    assert not graph["nodes"][-1].get("attrs")
    assert check(symbol)["BatchNorm"] == 0


@pytest.mark.parametrize("fixed", [True, False])
def test_a_batch_norm_goes_into_a_linear_layer(fixed: bool) -> None:
    x = mx.sym.FullyConnected(CONV, num_hidden=5, name="fc")
    assert check(normalized(x, fix_gamma=fixed))["BatchNorm"] == 0
    assert check(normalized(mx.sym.FullyConnected(x, num_hidden=3, no_bias=True)))["BatchNorm"] == 0


def test_two_batch_norms_go_into_one_convolution() -> None:
    assert check(normalized(normalized(CONV, "a"), "b"))["BatchNorm"] == 0


@pytest.mark.parametrize(
    "symbol",
    [
        # Of two consumers, the other one needs the convolution as it is.
        normalized(CONV) + CONV,
        normalized(CONV, "a") + normalized(CONV, "b"),
        normalized(mx.sym.Activation(CONV, act_type="tanh")),
        normalized(DATA),
        normalized(CONV, axis=3),
        normalized(CONV + 1),
    ],
    ids=["used again", "two norms", "not behind a layer", "input", "other axis", "shifted"],
)
def test_other_batch_norms_stay(symbol: Any) -> None:
    plain = count(symbol)["BatchNorm"]
    assert check(symbol)["BatchNorm"] == plain


def test_an_output_of_the_graph_stays() -> None:
    symbol = mx.sym.Group([normalized(CONV), CONV])
    folded, _ = fold(symbol, values(symbol), IMAGES.shape[1:])
    assert count(folded)["BatchNorm"] == 1


def test_a_kernel_that_two_convolutions_share_is_folded_for_each() -> None:
    kernel = mx.sym.var("kernel", shape=(3, 3, 3, 3))
    first = normalized(convolved(DATA, "a", 3, weight=kernel, no_bias=True), "bn_a")
    second = normalized(convolved(first, "b", 3, weight=kernel, no_bias=True), "bn_b")
    assert check(second)["BatchNorm"] == 0


def test_statistics_that_two_batch_norms_share_are_read_by_both() -> None:
    shared = {
        "gamma": mx.sym.var("gamma"),
        "beta": mx.sym.var("beta"),
        "moving_mean": mx.sym.var("bn_mean"),
        "moving_var": mx.sym.var("bn_var"),
    }
    first = normalized(CONV, "a", **shared)
    assert check(normalized(convolved(first, "conv2"), "b", **shared))["BatchNorm"] == 0


def test_a_layer_whose_kernel_is_computed_stays() -> None:
    kernel = 2 * mx.sym.var("kernel", shape=(3, 3, 3, 3))
    symbol = normalized(convolved(DATA, "a", 3, weight=kernel, no_bias=True))
    assert check(symbol)["BatchNorm"] == 1


SLOPES = [0.25, -1.5, 2.0, 0.0]


def test_a_prelu_scales_the_layer_before_it() -> None:
    """One convolution of one pixel, joined with the sum; none for the linear part."""
    found = check(prelu(normalized(CONV)), SLOPES)
    assert found == {"_mul_scalar": 1, "Convolution": 2, "LeakyReLU": 1, "elemwise_add": 1}


def test_a_prelu_scales_a_batch_norm_that_stays() -> None:
    x = mx.sym.Concat(CONV, CONV)
    for fixed in (True, False):
        found = check(prelu(normalized(x, fix_gamma=fixed)), SLOPES + SLOPES)
        assert found["Convolution"] == 2 and found["BatchNorm"] == 1


@pytest.mark.parametrize(
    ("symbol", "slopes"),
    [
        (prelu(CONV) + CONV, SLOPES),
        (prelu(mx.sym.Activation(CONV, act_type="tanh")), SLOPES),
        (prelu(CONV), [0.25, -STEEPNESS, 0.5, 0.5]),
        (prelu(CONV), [0.25, -40.0, 0.5, 0.5]),
    ],
    ids=["used again", "not behind a layer", "steep", "steeper"],
)
def test_a_prelu_that_cannot_scale(symbol: Any, slopes: list[float]) -> None:
    assert check(symbol, slopes)["Activation"] >= 1


def test_a_prelu_of_one_slope_is_joined_as_it_is() -> None:
    assert check(prelu(normalized(CONV)), [0.25] * 4) == {
        "_mul_scalar": 1,
        "Convolution": 1,
        "LeakyReLU": 1,
    }
    assert check(prelu(CONV), [-2.0])["Convolution"] == 1


def test_a_prelu_of_vectors_and_one_that_is_no_number_stay() -> None:
    x = prelu(mx.sym.FullyConnected(CONV, num_hidden=4, name="fc"))
    assert "prelu" in fold(x, values(x), IMAGES.shape[1:])[0].tojson()
    weights = values(prelu(CONV), [0.25, float("nan"), 0.5, 0.5])
    assert "prelu" in fold(prelu(CONV), weights, IMAGES.shape[1:])[0].tojson()


def test_sums_of_other_names_are_joined_unless_they_broadcast() -> None:
    shift = mx.sym.mean(CONV, axis=(2, 3), keepdims=True)
    other = convolved(CONV, "conv2")
    assert check(mx.sym.broadcast_add(other, CONV))["elemwise_add"] == 1
    assert check(mx.sym.broadcast_add(other, shift))["broadcast_add"] == 1


@pytest.mark.parametrize(("block", "filled"), [(8, 24), (16, 32)], indirect=["block"])
def test_channels_fill_blocks(block: int, filled: int) -> None:
    # A sum with what has channels of its own number, so that the padding has to end there.
    shift = mx.sym.mean(DATA, axis=(1, 2, 3), keepdims=True)
    symbol = mx.sym.broadcast_add(convolved(CONV, "wide", 20), shift)
    _, own = fold(symbol, values(symbol), IMAGES.shape[1:])
    assert own["wide_bias_padded"].shape == (filled,)
    check(symbol)


@pytest.mark.parametrize("name", ["tiny", "mbf", "r18", "r18-se"])
def test_backbones_have_no_batch_norm_behind_a_convolution(name: str) -> None:
    symbol = backbones.build(name, embedding_size=8)
    weights = values(symbol, size=(112, 112))
    folded = count(fold(symbol, weights, (3, 112, 112))[0])
    # Those before a convolution stay: its padding is not shifted.
    expected = {"tiny": 0, "mbf": 0, "r18": 9, "r18-se": 9}[name]
    assert folded["BatchNorm"] == expected


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
    nodes = json.loads(found.tojson(remove_amp_cast=False))["nodes"]
    inner = [part for node in nodes for part in node.get("subgraphs", [{}])[0].get("nodes", [])]
    names = {part["name"] for part in inner if part["op"] == "Convolution"}
    assert {name for name in names if name.startswith("wide")} == parts
    check(symbol)
