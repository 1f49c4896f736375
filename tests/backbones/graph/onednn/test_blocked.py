"""Convolutions that fill oneDNN's blocks compute what the plain ones compute; so do products."""

from __future__ import annotations

from typing import Any

import pytest

from backbones.graph.onednn import blocked, products
from runtime.mxnet import mx
from tests.backbones.passes import DATA, act, compare, conv, nodes_of, norm, operators

BATCH = 3
# A graph without BatchNorm is left alone.
MAPS = norm(DATA, "bn9")


def convolutions(symbol: Any) -> list[tuple[int, int]]:
    """The channels and groups of each convolution of a graph."""
    found = [node["attrs"] for node in nodes_of(symbol).values() if node["op"] == "Convolution"]
    return [(int(one["num_filter"]), int(one.get("num_group", "1"))) for one in found]


@pytest.mark.parametrize(("inputs", "outputs", "groups", "filled"), [
    # ResNeXt29_32x4d; DPN92; groups of unequal channels; one group; depthwise ones.
    *((128, 128, 32, (128, 8)), (96, 96, 32, (96, 2)), (24, 48, 3, (64, 2))),
    *((24, 40, 1, (48, 1)), (32, 24, 1, (32, 1)), (24, 24, 24, (32, 32))),
    (16, 32, 16, (32, 1)),
])
def test_a_convolution(inputs: int, outputs: int, groups: int, filled: tuple[int, int]) -> None:
    shape = (BATCH, inputs, 6, 5)
    for no_bias in (True, False):
        settings = {"num_group": groups, "no_bias": no_bias, "stride": (2, 1)}
        plain = conv(MAPS, "conv0", outputs, 3, **settings)
        fast = blocked.rewrite(plain, shape, 16)
        assert convolutions(fast) == [filled]
        compare(plain, fast, shape)


def test_a_convolution_between_others() -> None:
    """Of which padded maps come, and to which they go, with BatchNorm between them."""
    # A bias in front of a BatchNorm has no gradient but rounding errors.
    x = norm(conv(DATA, "conv0", 24, 1, no_bias=True), "bn0")
    x = x + conv(x, "conv1", 24, 1, num_group=3)
    plain, shape = conv(x, "conv2", 16, pad=(0, 0)), (BATCH, 16, 4, 4)
    fast = blocked.rewrite(plain, shape, 16)
    assert convolutions(fast) == [(32, 1), (32, 2), (16, 1)]
    compare(plain, fast, shape)


def test_what_is_left_alone() -> None:
    for shape, channels, options in (
        # Full; few channels, of which most would be padding; one pixel; another layout.
        ((1, 32, 4, 4), 16, {}),
        ((1, 6, 4, 4), 16, {}),
        ((1, 32, 4, 4), 6, {}),
        ((1, 24, 1, 1), 24, {}),
        ((1, 4, 4, 24), 24, {"layout": "NHWC"}),
    ):
        fast = blocked.rewrite(conv(MAPS, "conv0", channels, 1, **options), shape, 16)
        assert operators(fast) == ["BatchNorm", "Convolution"], (shape, channels)
    plain = conv(DATA, "conv0", 24, 1)
    assert blocked.rewrite(plain, (1, 24, 4, 4), 16) is plain


def test_addends_come_in_one_layout_and_the_later_first() -> None:
    first, shape = conv(MAPS, "conv0", 16, 1), (BATCH, 16, 2, 2)
    second = conv(first, "conv1", 16, 1)
    nodes = [*nodes_of(blocked.rewrite(first + second, shape, 16)).values()]
    assert [nodes[entry[0]]["name"] for entry in nodes[-1]["inputs"]] == ["conv1", "conv0"]
    # MXNet computes a product by itself, in the plain layout.
    product = mx.sym.broadcast_mul(second, mx.sym.var("w_weight", shape=(1, 16, 1, 1)))
    plain = act(first) + product
    fast = blocked.rewrite(plain, shape, 16)
    assert convolutions(fast) == [(16, 1), (16, 1), (16, 16)]
    compare(plain, fast, shape)
    assert (16, 16) not in convolutions(blocked.rewrite(product + product, shape, 16))


@pytest.mark.parametrize(("pool_type", "size", "count"), [
    ("avg", (8, 6), 2), ("avg", (7, 8), 1), ("avg", (2, 2), 1), ("max", (8, 6), 1),
])
def test_means_of_quarters(pool_type: str, size: tuple[int, int], count: int) -> None:
    shape = (BATCH, 32, *size)
    # oneDNN needs a kernel.
    for kernel in ({"kernel": (7, 7)}, {}):
        plain = mx.sym.Pooling(MAPS, global_pool=True, pool_type=pool_type, name="p", **kernel)
        fast = blocked.rewrite(plain, shape, 16)
        pooled = [node for node in nodes_of(fast).values() if node["op"] == "Pooling"]
        assert len(pooled) == count and all("kernel" in node["attrs"] for node in pooled)
        compare(plain, fast, shape)


def test_products_of_maps_and_a_number_for_each() -> None:
    numbers = mx.sym.mean(DATA, axis=(2, 3), keepdims=True)
    plain = mx.sym.broadcast_mul(DATA, numbers, name="product")
    fast = products.rewrite(plain, (1, 3, 4, 2))
    assert "broadcast_mul" not in operators(fast)
    # Of one image, and of as many as the graph does not know.
    for images in (1, 5):
        compare(plain, fast, (images, 3, 4, 2))
    # Others are MXNet's.
    for maps, factors in (
        ((1, 3, 1, 1), (1, 3, 1, 1)),
        ((1, 3, 4, 4), (1, 1, 4, 4)),
        ((1, 3), (1, 1)),
    ):
        plain = mx.sym.broadcast_mul(DATA, mx.sym.var("factors", shape=factors))
        assert operators(products.rewrite(plain, maps)) == ["broadcast_mul"], maps
