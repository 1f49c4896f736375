"""Convolutions that fill oneDNN's blocks compute what the plain ones compute."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from backbones import classifiers
from backbones.classifiers import Normalization
from backbones.graph.onednn import blocked
from backbones.graph.onednn.channels import Channels
from backbones.network import Network, initial_weights
from runtime.mxnet import mx

BATCH = 3
NORMALIZATION = Normalization((0.5,) * 3, (0.25,) * 3)


def maps() -> Any:
    """The input behind a BatchNorm; a graph without one is left alone."""
    return mx.sym.BatchNorm(mx.sym.var("data"), fix_gamma=False, name="bn9")


def nodes(symbol: Any) -> list[dict[str, Any]]:
    return json.loads(symbol.tojson())["nodes"]


def operators(symbol: Any) -> list[str]:
    return [node["op"] for node in nodes(symbol) if node["op"] != "null"]


def convolutions(symbol: Any) -> list[tuple[str, str]]:
    """The channels and groups of each convolution of a graph."""
    found = [node["attrs"] for node in nodes(symbol) if node["op"] == "Convolution"]
    return [(one["num_filter"], one.get("num_group", "1")) for one in found]


def trained(symbol: Any, exported: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Output, running statistics, and the gradients of the input and of all parameters."""
    weights = initial_weights(exported, shape[1:], seed=1)
    generator = np.random.default_rng(2)
    for name, value in weights.items():
        if not name.endswith(("_weight", "_var")):
            value[:] = mx.nd.array(generator.uniform(0.5, 1.5, value.shape))
    network = Network(symbol, exported, weights, mx.cpu())
    data = mx.nd.array(generator.normal(size=shape))
    data.attach_grad()
    with mx.autograd.record():
        output = network(data)
    output.backward(mx.nd.array(generator.normal(size=output.shape)))
    results = [output, data.grad]
    for name in sorted(weights):
        parameter = network.parameters[name]
        results.append(parameter.data() if parameter.grad_req == "null" else parameter.grad())
    return [result.asnumpy() for result in results]


def compare(plain: Any, fast: Any, shape: tuple[int, ...]) -> None:
    assert sorted(fast.list_arguments()) == sorted(plain.list_arguments())
    assert fast.list_outputs() == plain.list_outputs()
    for found, expected in zip(
        trained(fast, plain, shape), trained(plain, plain, shape), strict=True
    ):
        limit = 1e-4 * np.abs(expected).max() + 1e-6
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=limit)


@pytest.mark.parametrize(
    ("channels", "block", "expected"),
    [
        # Full already.
        (Channels(1, 16, 32), 16, Channels(1, 16, 32)),
        (Channels(2, 64, 64), 16, Channels(2, 64, 64)),
        (Channels(32, 1, 1), 16, Channels(32, 1, 1)),
        # ResNeXt29_32x4d: groups of 4 and 8 channels.
        (Channels(32, 4, 4), 16, Channels(8, 16, 16)),
        (Channels(32, 8, 8), 16, Channels(16, 16, 16)),
        (Channels(32, 4, 4), 8, Channels(16, 8, 8)),
        # RegNetX_200MF: three groups of 8 channels; MobileNetV2: 24 channels; DPN92: groups of 3.
        (Channels(3, 8, 8), 16, Channels(2, 16, 16)),
        (Channels(1, 24, 144), 16, Channels(1, 32, 144)),
        (Channels(1, 96, 24), 16, Channels(1, 96, 32)),
        (Channels(32, 3, 3), 16, Channels(2, 48, 48)),
        # Depthwise; a channel multiplier; pixels, which are not padded.
        (Channels(24, 1, 1), 16, Channels(32, 1, 1)),
        (Channels(24, 1, 2), 16, Channels(2, 16, 32)),
        (Channels(1, 3, 24), 16, Channels(1, 3, 32)),
    ],
)
def test_channels_by_hand(channels: Channels, block: int, expected: Channels) -> None:
    assert channels.filled(block) == expected


@pytest.mark.parametrize(
    ("inputs", "outputs", "groups", "filled"),
    [
        (16, 16, 4, ("16", "1")),
        (32, 32, 8, ("32", "2")),
        (24, 48, 3, ("64", "2")),
        (24, 40, 1, ("48", "1")),
        (32, 24, 1, ("32", "1")),
        (24, 24, 24, ("32", "32")),
        (16, 32, 16, ("32", "1")),
    ],
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_convolution(
    inputs: int, outputs: int, groups: int, filled: tuple[str, str], has_bias: bool
) -> None:
    plain = mx.sym.Convolution(
        maps(),
        kernel=(3, 3),
        pad=(1, 1),
        stride=(2, 1),
        num_filter=outputs,
        num_group=groups,
        no_bias=not has_bias,
        name="conv0",
    )
    shape = (BATCH, inputs, 6, 5)
    fast = blocked.rewrite(plain, shape, 16)
    assert convolutions(fast) == [filled]
    compare(plain, fast, shape)


def test_a_convolution_between_others() -> None:
    """Of which padded maps come, and to which they go, with BatchNorm between them."""
    # A bias in front of a BatchNorm has no gradient but rounding errors.
    sizes = {"kernel": (1, 1), "num_filter": 24, "no_bias": True}
    x = mx.sym.Convolution(mx.sym.var("data"), **sizes, name="conv0")
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="bn0")
    x = x + mx.sym.Convolution(x, kernel=(1, 1), num_filter=24, num_group=3, name="conv1")
    plain = mx.sym.Convolution(x, kernel=(3, 3), num_filter=16, name="conv2")
    shape = (BATCH, 16, 4, 4)
    fast = blocked.rewrite(plain, shape, 16)
    assert convolutions(fast) == [("32", "1"), ("32", "2"), ("16", "1")]
    compare(plain, fast, shape)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        # Full; few channels, of which most would be padding; one pixel; another layout.
        ((1, 32, 4, 4), {"num_filter": 16}),
        ((1, 6, 4, 4), {"num_filter": 16}),
        ((1, 32, 4, 4), {"num_filter": 6}),
        ((1, 24, 1, 1), {"num_filter": 24}),
        ((1, 4, 4, 24), {"num_filter": 24, "layout": "NHWC"}),
    ],
)
def test_what_is_left_alone(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    plain = mx.sym.Convolution(maps(), kernel=(1, 1), name="conv0", **options)
    assert operators(blocked.rewrite(plain, shape, 16)) == ["BatchNorm", "Convolution"]


def test_a_graph_without_batch_norm_is_left_alone() -> None:
    plain = mx.sym.Convolution(mx.sym.var("data"), kernel=(1, 1), num_filter=24, name="conv0")
    assert blocked.rewrite(plain, (1, 24, 4, 4), 16) is plain


@pytest.mark.parametrize("name", ["MobileNetV2", "RegNetX_200MF", "ResNeXt29_32x4d"])
def test_whole_networks(name: str) -> None:
    """Outputs; what small differences become in BatchNorms of few images says little."""
    plain = classifiers.build(name, classes=10, normalization=NORMALIZATION)
    fast = blocked.rewrite(plain, (1, 3, 32, 32), 16)
    weights = initial_weights(plain, (3, 32, 32), seed=3)
    images = np.random.default_rng(4).integers(0, 256, (4, 3, 32, 32))
    results = []
    for symbol in (plain, fast):
        network = Network(symbol, plain, weights, mx.cpu())
        outputs = network(mx.nd.array(images)).asnumpy()
        with mx.autograd.record():
            in_training = network(mx.nd.array(images))
        network.backward(in_training, mx.nd.ones(in_training.shape))
        gradient = network.parameters["fc_output_weight"].grad().asnumpy()
        results.append((outputs, in_training.asnumpy(), gradient))
    for expected, found in zip(*results, strict=True):
        limit = 1e-3 * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=limit)


def test_addends_come_in_one_layout_and_the_later_first() -> None:
    data = maps()
    first = mx.sym.Convolution(data, kernel=(1, 1), num_filter=16, name="conv0")
    second = mx.sym.Convolution(first, kernel=(1, 1), num_filter=16, name="conv1")
    shape = (BATCH, 16, 2, 2)

    fast = blocked.rewrite(first + second, shape, 16)
    names = [node["name"] for node in nodes(fast)]
    assert [names[entry[0]] for entry in nodes(fast)[-1]["inputs"]] == ["conv1", "conv0"]

    # MXNet computes a product by itself, in the plain layout.
    product = mx.sym.broadcast_mul(second, mx.sym.var("w_weight", shape=(1, 16, 1, 1)))
    plain = mx.sym.Activation(first, act_type="relu") + product
    fast = blocked.rewrite(plain, shape, 16)
    assert convolutions(fast) == [("16", "1"), ("16", "1"), ("16", "16")]
    compare(plain, fast, shape)
    doubled = blocked.rewrite(product + product, shape, 16)
    assert ("16", "16") not in convolutions(doubled)


@pytest.mark.parametrize(
    ("options", "size", "count"),
    [
        ({"pool_type": "avg"}, (8, 6), 2),
        ({"pool_type": "avg"}, (7, 8), 1),
        ({"pool_type": "avg"}, (2, 2), 1),
        ({"pool_type": "max"}, (8, 6), 1),
    ],
)
def test_means_of_quarters(options: dict[str, str], size: tuple[int, int], count: int) -> None:
    plain = mx.sym.Pooling(
        maps(), kernel=(7, 7), global_pool=True, name="pool0", **options
    )
    shape = (BATCH, 32, *size)
    fast = blocked.rewrite(plain, shape, 16)
    assert operators(fast).count("Pooling") == count
    compare(plain, fast, shape)


@pytest.mark.parametrize("size", [(8, 6), (2, 2)])
def test_a_mean_without_kernel_gets_one_for_onednn(size: tuple[int, int]) -> None:
    plain = mx.sym.Pooling(maps(), global_pool=True, pool_type="avg", name="pool0")
    shape = (BATCH, 32, *size)
    fast = blocked.rewrite(plain, shape, 16)
    pooled = [node for node in nodes(fast) if node["op"] == "Pooling"]
    assert pooled and all("kernel" in node["attrs"] for node in pooled)
    compare(plain, fast, shape)
