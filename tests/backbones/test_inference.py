"""The graph for inference on a CPU computes what the plain one computes, with fewer operators."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

from backbones.graph.nodes import to_json
from backbones.graph.onednn.folding import fold
from backbones.graph.onednn.prelu import STEEPNESS
from backbones.inference import HostInference
from backbones.model import Backbone
from backbones.network import Network
from runtime import environment, processors
from runtime.mxnet import mx
from tests.backbones import passes
from tests.backbones.passes import DATA, IMAGES, act, conv, create, norm, operators

SMALL = np.random.default_rng(7).integers(0, 256, (2, 3, 6, 5), dtype=np.uint8)
Slopes = Optional[list[float]]


@pytest.fixture
def avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any processor as many channels at once as AVX-512 has."""
    monkeypatch.setattr(environment, "channel_block", lambda: 16)


def made_up(symbol: Any, slopes: Slopes) -> dict[str, Any]:
    """Weights as after training, slopes of PReLUs of either sign and above 1."""
    generator = np.random.default_rng(3)
    arguments, _, auxiliary = symbol.infer_shape(data=(1, 3, 6, 5))
    names = symbol.list_arguments() + symbol.list_auxiliary_states()
    made = {}
    for name, size in zip(names, arguments + auxiliary):
        # Maps of either sign, as a PReLU has to be told apart from what it does above 0.
        low, high = (-1.0, 1.0) if name.endswith(("weight", "kernel")) else (-0.5, 1.5)
        low, high = (0.5, 2.0) if name.endswith("var") else (low, high)
        made[name] = generator.uniform(low, high, size).astype(np.float32)
        if name.startswith("relu") and slopes:
            made[name] = np.array(slopes, np.float32)
    del made["data"]
    return made


def folded(symbol: Any, slopes: Slopes = None, dtype: str = "float32") -> tuple[Any, Any]:
    return fold(symbol, made_up(symbol, slopes), SMALL.shape[1:], dtype)


def inner_nodes(symbol: Any) -> list[list[dict[str, Any]]]:
    """Return the operators of a graph, each in a list; of a joined one, those inside it."""
    inner = [node.get("subgraphs", [{"nodes": [node]}])[0] for node in to_json(symbol)["nodes"]]
    return [[one for one in each["nodes"] if one["op"] != "null"] for each in inner]


def check(symbol: Any, slopes: Slopes = None) -> Counter[str]:
    """Compare a graph's outputs with those of its folded form; returns its operators."""
    weights = made_up(symbol, slopes)
    before = {name: value.copy() for name, value in weights.items()}
    given = {name: mx.nd.array(value) for name, value in weights.items()}
    expected = Network(symbol, symbol, given, mx.cpu()).extract(SMALL)
    infer = HostInference(symbol, weights)
    infer(SMALL)
    # From its second call on, an operator uses the kernel and the primitive that it keeps.
    found = infer(SMALL)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    for name, value in weights.items():
        np.testing.assert_array_equal(value, before[name])
    return Counter(node["op"] for nodes in inner_nodes(folded(symbol, slopes)[0]) for node in nodes)


PIXELS = DATA * 0.0078125
CONV = conv(PIXELS, "conv", 4)
LINEAR = mx.sym.FullyConnected(CONV, num_hidden=4, name="fc", no_bias=True)


@pytest.mark.usefixtures("avx512")
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


@pytest.mark.usefixtures("avx512")
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
    # A PReLU scales the layer before it.
    (act(norm(CONV), "prelu"), SLOPES, SCALED),
    # Not where the layer is used again, or there is none, or a slope is steep.
    (act(norm(TWICE, fix_gamma=True), "prelu"), 2 * SLOPES, {"BatchNorm": 1, "Activation": 1}),
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
    monkeypatch.setattr(environment, "channel_block", lambda: block)
    # A sum with what has channels of its own number, so that the padding has to end there.
    shift = mx.sym.mean(PIXELS, axis=(1, 2, 3), keepdims=True)
    symbol = mx.sym.broadcast_add(conv(CONV, "wide", 20), shift)
    assert folded(symbol)[1]["wide_bias_padded"].shape == (filled,)
    check(symbol)


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
])
def test_joined_operators_compute_the_same(symbol, expected, monkeypatch) -> None:
    monkeypatch.setattr(environment, "channel_block", lambda: 1)
    check(symbol)
    found = inner_nodes(folded(symbol)[0])
    assert sorted("+".join(node["op"] for node in nodes) for nodes in found if nodes) == expected


def thorough(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.thorough) for name in names]


def train_a_little(network: Network) -> None:
    """Give all parameters values as after training, slopes of either sign and above 1.

    With larger factors the maps of RegNetY grow so much from layer to layer that its gates are all
    0 or 1, and rounding decides which.
    """
    generator = np.random.default_rng(5)
    for name, parameter in network.parameters.items():
        if not name.endswith(("weight", "bias")):
            low, high = (-0.5, 1.5) if "relu" in name else (0.4, 1.1)
            numbers = generator.uniform(low, high, parameter.shape)
            parameter.set_data(mx.nd.array(numbers).astype(parameter.dtype))


def check_network(network: Network, images: np.ndarray) -> None:
    train_a_little(network)
    plain = network.extract(images)
    found = network.inference()(images)
    assert found.shape == plain.shape and found.dtype == np.float32
    # Squeeze and excitation computes its factors outside of oneDNN, in another order.
    assert np.abs(found - plain).max() <= 1e-3 * np.abs(plain).max()
    assert np.ptp(plain, axis=0).max() > 0


@pytest.mark.parametrize(("name", "output"), [
    ("mbf", None), ("r18-se", "J"), *(("tiny", output) for output in ("E", "F", "GAP", "GDC")),
])
def test_backbones(name: str, output: Optional[str]) -> None:
    check_network(create(name, net_output=output), IMAGES[:3])


DEEPER = thorough("VGG16", "ResNeXt29_32x4d", "DenseNet121", "PreActResNet18", "DLA")
CLASSIFIERS = ["LeNet", "RegNetY_400MF", "DPN26", "resnet20", "inception-bn-28-small", *DEEPER]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers(name: str) -> None:
    shape = (1, 28, 28) if name == "LeNet" else (3, 32, 32)
    check_network(passes.classifier(name, shape), IMAGES[:3, : shape[0], : shape[1], : shape[2]])


@pytest.fixture(scope="module")
def network() -> Backbone:
    backbone = create(net_output="GAP", embedding_size=8)
    train_a_little(backbone)
    return backbone


@pytest.mark.parametrize(("count", "side"), [(8, 112), (19, 112), (3, 32)])
def test_any_number_of_images_by_turns(network: Backbone, count: int, side: int) -> None:
    images = np.random.default_rng(7).integers(0, 256, (count, 3, side, side), np.uint8)
    infer = network.inference()
    # A view of memory that is read backwards.
    for given in (images, np.zeros((2, 3, 48, 48), np.uint8), images[..., ::-1]):
        expected = network.extract(np.ascontiguousarray(given))
        np.testing.assert_allclose(infer(given), expected, rtol=1e-4, atol=1e-4)


_OF_LANES = """
import sys
import numpy as np
from runtime import environment
environment.prepare_lanes()
from backbones.model import Backbone
network = Backbone.load(sys.argv[1], 0)
# Of more batches than lanes, the last of another shape.
images = np.random.default_rng(1).integers(0, 256, (67, 3, 112, 112), dtype=np.uint8)
infer = network.inference()
assert environment.lanes() == 3
found = [infer(images) for _ in range(2)]
assert np.array_equal(found[0], found[1])
np.testing.assert_allclose(found[0], network.extract(images), rtol=1e-4, atol=1e-4)
"""


def test_lanes_compute_the_same(network: Backbone, tmp_path: Path) -> None:
    network.export(tmp_path / "model")
    command = [sys.executable, "-c", _OF_LANES, str(tmp_path / "model")]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "3"}, check=True)


def test_the_weights_are_those_of_its_moment() -> None:
    backbone = create()
    infer = backbone.inference()
    before = infer(IMAGES)
    for name, change in (("fc1_beta", 3), ("fc1_moving_mean", -2)):
        value = backbone.parameters[name].data()
        value[:] = value + change
    np.testing.assert_array_equal(infer(IMAGES), before)
    later = backbone.inference()(IMAGES)
    np.testing.assert_allclose(later, backbone.extract(IMAGES), rtol=1e-4, atol=1e-4)
    assert np.abs(later - before).min() > 1
    # A device computes by the graph that trains.
    other = create(ctx=mx.cpu(1))
    assert other.inference() == other.extract


@pytest.mark.skipif(not processors.has_avx512(), reason="bfloat16 needs AVX-512")
@pytest.mark.parametrize("unit", ["AMX", "AVX-512"])
@pytest.mark.parametrize("name", ["tiny", *thorough("mbf", "r18-se")])
def test_bfloat16(name, unit, monkeypatch) -> None:
    """Where there is no such unit, oneDNN computes what it would by other instructions."""
    monkeypatch.setattr(environment, "bfloat16_unit", lambda: unit)
    network = create(name, seed=2, dtype="bfloat16", embedding_size=32)
    train_a_little(network)
    wide = HostInference(network.graph, passes.values(network))(IMAGES)
    for found in (network.inference()(IMAGES), network.extract(IMAGES)):
        assert 0 < np.abs(found - wide).max() < 0.1 * np.abs(wide).max()
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wide, axis=1)
        assert ((found * wide).sum(axis=1) / lengths).min() > 0.995
