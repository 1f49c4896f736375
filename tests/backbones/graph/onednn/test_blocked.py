"""Convolutions that fill oneDNN's blocks compute what the plain ones compute."""

from __future__ import annotations

from typing import Any

import pytest

from backbones.graph.onednn import blocked
from runtime.mxnet import mx
from tests.backbones.graph.onednn.steps import compare, nodes_of, operators

BATCH = 3
# A graph without BatchNorm is left alone.
MAPS = mx.sym.BatchNorm(mx.sym.var("data"), fix_gamma=False, name="bn9")


def convolution(x: Any, name: str = "conv0", **settings: Any) -> Any:
    return mx.sym.Convolution(x, **{"kernel": (1, 1), **settings}, name=name)


def convolutions(symbol: Any) -> list[tuple[int, int]]:
    """The channels and groups of each convolution of a graph."""
    found = [node["attrs"] for node in nodes_of(symbol).values() if node["op"] == "Convolution"]
    return [(int(one["num_filter"]), int(one.get("num_group", "1"))) for one in found]


@pytest.mark.parametrize(
    ("inputs", "outputs", "groups", "filled"),
    [
        # ResNeXt29_32x4d; DPN92; groups of unequal channels; one group; depthwise ones.
        *((128, 128, 32, (128, 8)), (96, 96, 32, (96, 2)), (24, 48, 3, (64, 2))),
        *((24, 40, 1, (48, 1)), (32, 24, 1, (32, 1)), (24, 24, 24, (32, 32))),
        (16, 32, 16, (32, 1)),
    ],
)
def test_a_convolution(inputs: int, outputs: int, groups: int, filled: tuple[int, int]) -> None:
    sizes: dict[str, Any] = {"kernel": (3, 3), "pad": (1, 1), "stride": (2, 1)}
    shape = (BATCH, inputs, 6, 5)
    for no_bias in (True, False):
        plain = convolution(MAPS, num_filter=outputs, num_group=groups, no_bias=no_bias, **sizes)
        fast = blocked.rewrite(plain, shape, 16)
        assert convolutions(fast) == [filled]
        compare(plain, fast, shape)


def test_a_convolution_between_others() -> None:
    """Of which padded maps come, and to which they go, with BatchNorm between them."""
    # A bias in front of a BatchNorm has no gradient but rounding errors.
    x = convolution(mx.sym.var("data"), num_filter=24, no_bias=True)
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="bn0")
    x = x + convolution(x, "conv1", num_filter=24, num_group=3)
    plain, shape = convolution(x, "conv2", kernel=(3, 3), num_filter=16), (BATCH, 16, 4, 4)
    fast = blocked.rewrite(plain, shape, 16)
    assert convolutions(fast) == [(32, 1), (32, 2), (16, 1)]
    compare(plain, fast, shape)


def test_what_is_left_alone() -> None:
    for shape, options in (
        # Full; few channels, of which most would be padding; one pixel; another layout.
        ((1, 32, 4, 4), {"num_filter": 16}),
        ((1, 6, 4, 4), {"num_filter": 16}),
        ((1, 32, 4, 4), {"num_filter": 6}),
        ((1, 24, 1, 1), {"num_filter": 24}),
        ((1, 4, 4, 24), {"num_filter": 24, "layout": "NHWC"}),
    ):
        fast = blocked.rewrite(convolution(MAPS, **options), shape, 16)
        assert operators(fast) == ["BatchNorm", "Convolution"], options
    plain = convolution(mx.sym.var("data"), num_filter=24)
    assert blocked.rewrite(plain, (1, 24, 4, 4), 16) is plain


def test_addends_come_in_one_layout_and_the_later_first() -> None:
    first, shape = convolution(MAPS, num_filter=16), (BATCH, 16, 2, 2)
    second = convolution(first, "conv1", num_filter=16)
    nodes = [*nodes_of(blocked.rewrite(first + second, shape, 16)).values()]
    assert [nodes[entry[0]]["name"] for entry in nodes[-1]["inputs"]] == ["conv1", "conv0"]
    # MXNet computes a product by itself, in the plain layout.
    product = mx.sym.broadcast_mul(second, mx.sym.var("w_weight", shape=(1, 16, 1, 1)))
    plain = mx.sym.Activation(first, act_type="relu") + product
    fast = blocked.rewrite(plain, shape, 16)
    assert convolutions(fast) == [(16, 1), (16, 1), (16, 16)]
    compare(plain, fast, shape)
    assert (16, 16) not in convolutions(blocked.rewrite(product + product, shape, 16))


@pytest.mark.parametrize(
    ("pool_type", "size", "count"),
    [("avg", (8, 6), 2), ("avg", (7, 8), 1), ("avg", (2, 2), 1), ("max", (8, 6), 1)],
)
def test_means_of_quarters(pool_type: str, size: tuple[int, int], count: int) -> None:
    shape = (BATCH, 32, *size)
    # oneDNN needs a kernel.
    for kernel in ({"kernel": (7, 7)}, {}):
        plain = mx.sym.Pooling(MAPS, global_pool=True, pool_type=pool_type, name="p", **kernel)
        fast = blocked.rewrite(plain, shape, 16)
        pooled = [node for node in nodes_of(fast).values() if node["op"] == "Pooling"]
        assert len(pooled) == count and all("kernel" in node["attrs"] for node in pooled)
        compare(plain, fast, shape)
