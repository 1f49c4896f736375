"""Graphs rewritten for a CPU's training pass compute what the plain ones compute."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import backbones
from backbones.graph.onednn import blocked, narrow, prelu
from backbones.network import initial_weights
from runtime import environment, processors
from runtime.mxnet import mx
from tests.backbones import passes
from tests.backbones.passes import DATA, IMAGES, act, compare, conv, nodes_of, norm, operators

BATCH = 3
# A graph without BatchNorm is left alone.
MAPS = norm(DATA, "bn9")


@pytest.fixture(autouse=True)
def _of_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "channel_block", lambda: 16)


def channels_and_groups(symbol: Any) -> list[tuple[int, int]]:
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
        fast = blocked.rewrite(plain, shape)
        assert channels_and_groups(fast) == [filled]
        compare(plain, fast, shape)


def test_a_convolution_between_others() -> None:
    # A bias in front of a BatchNorm has no gradient but rounding errors.
    x = norm(conv(DATA, "conv0", 24, 1, no_bias=True), "bn0")
    x = x + conv(x, "conv1", 24, 1, num_group=3)
    plain, shape = conv(x, "conv2", 16, pad=(0, 0)), (BATCH, 16, 4, 4)
    fast = blocked.rewrite(plain, shape)
    assert channels_and_groups(fast) == [(32, 1), (32, 2), (16, 1)]
    compare(plain, fast, shape)


@pytest.mark.parametrize("counts", [(12, 24), (12, 36)])
def test_a_concatenation_of_blocks_that_are_not_full(counts: tuple[int, int]) -> None:
    shape = (BATCH, 16, 8, 8)
    parts = [conv(MAPS, f"conv{count}", count, 1) for count in counts]
    plain = conv(norm(mx.sym.concat(*parts, dim=1, name="both"), "bn0"), "conv0", 16, 1)
    fast = blocked.rewrite(plain, shape)
    assert nodes_of(fast)["both_joined"]["attrs"]["dim"] == "2"
    if sum(counts) % 16:
        compare(plain, fast, shape)
    else:
        # The backward pass of the plain graph ends the process: oneDNN divides by zero.
        found = passes.step(fast, plain, shape)
        assert all(np.isfinite(one).all() for one in found.values())


def test_what_is_left_alone() -> None:
    # Full; few channels, of which most would be padding; one pixel.
    for inputs, side, channels in ((32, 4, 16), (6, 4, 16), (32, 4, 6), (24, 1, 24)):
        fast = blocked.rewrite(conv(MAPS, "conv0", channels, 1), (1, inputs, side, side))
        assert operators(fast) == ["BatchNorm", "Convolution"], (inputs, channels)
    plain = conv(DATA, "conv0", 24, 1)
    assert blocked.rewrite(plain, (1, 24, 4, 4)) is plain


@pytest.mark.parametrize(("pool_type", "size", "count"), [
    ("avg", (8, 6), 2), ("avg", (7, 8), 1), ("avg", (2, 2), 1), ("max", (8, 6), 1),
])
def test_means_of_quarters(pool_type: str, size: tuple[int, int], count: int) -> None:
    shape = (BATCH, 32, *size)
    # oneDNN needs a kernel.
    for kernel in ({"kernel": (7, 7)}, {}):
        plain = mx.sym.Pooling(MAPS, global_pool=True, pool_type=pool_type, name="p", **kernel)
        fast = blocked.rewrite(plain, shape)
        pooled = [node for node in nodes_of(fast).values() if node["op"] == "Pooling"]
        assert len(pooled) == count and all("kernel" in node["attrs"] for node in pooled)
        compare(plain, fast, shape)


def test_products_of_maps_and_a_number_for_each() -> None:
    numbers = mx.sym.mean(MAPS, axis=(2, 3), keepdims=True)
    plain = mx.sym.broadcast_mul(MAPS, numbers, name="product")
    fast = blocked.rewrite(plain, (1, 3, 4, 2))
    assert "broadcast_mul" not in operators(fast)
    assert "broadcast_mul" in operators(blocked.rewrite(plain, (1, 3, 4, 2), trains=False))
    for images in (1, 5):
        compare(plain, fast, (images, 3, 4, 2))
    one_pixel, one_channel = (1, 3, 1, 1), (1, 1, 4, 4)
    for maps, factors in ((one_pixel,) * 2, ((1, 3, 4, 4), one_channel), ((1, 3), (1, 1))):
        plain = mx.sym.broadcast_mul(MAPS, mx.sym.var("factors", shape=factors))
        assert "broadcast_mul" in operators(blocked.rewrite(plain, maps)), maps


SLOPE = mx.sym.var("slope")


def bent(x: Any, slope: Any = SLOPE) -> Any:
    return mx.sym.LeakyReLU(x, gamma=slope, act_type="prelu", name="relu0")


@pytest.mark.parametrize(("name", "side"), [("r18", 48), ("mbf", 112)])
def test_steps_equal_those_of_the_plain_graph(name: str, side: int) -> None:
    plain, shape = backbones.build(name, embedding_size=32), (4, 3, side, side)
    fast = prelu.rewrite(plain, (3, side, side))
    assert "PReLU" in operators(plain) and "PReLU" not in operators(fast)
    weights, generator = initial_weights(plain, shape[1:], seed=4), np.random.default_rng(5)
    for key, value in weights.items():
        if key.endswith("_gamma") and "relu" in key:
            # Slopes of either sign and above 1: the result may not depend on the usual ones.
            value[:] = mx.nd.array(generator.uniform(-0.5, 1.5, value.shape))
    # Shifts before a BatchNorm have no gradient but rounding errors; those of others depend on how
    # the numbers next to the kink of a PReLU are rounded.
    assert compare(plain, fast, shape, weights, 0.05, 1e-5) < 2e-3


OWN = {"gamma": mx.sym.var("gamma"), "beta": mx.sym.var("beta")}
NORM = norm(DATA, **OWN)


@pytest.mark.parametrize(("plain", "slopes", "count"), [
    # The BatchNorm takes a factor of the PReLU after it.
    *((bent(NORM), slopes, 1) for slopes in ([-1, 3, -0.01], [-20, 50, 1e-4])),
    # Not of slopes that are too steep, nor if it has no gamma, or if others need it.
    *((bent(NORM), [0.25, steep, 0.25], 2) for steep in (-31, -40)),
    (bent(norm(DATA, fix_gamma=True, **OWN)), [0.25, -1.0, 0.0], 2),
    (bent(NORM) + NORM, [0.25, -1.0, 0.0], 2),
])
def test_a_batch_norm_before_a_prelu(plain: Any, slopes: list[float], count: int) -> None:
    values = {"gamma": [0.5, -2.0, 1.0], "beta": [0.25, -0.5, 0.0], "slope": slopes}
    values |= {"bn_moving_mean": [0.0] * 3, "bn_moving_var": [1.0] * 3}
    weights = {name: mx.nd.array(value) for name, value in values.items()}
    fast = prelu.rewrite(plain, (3, 5, 3), weights)
    # With a kernel of ones a convolution changes the layout alone.
    assert operators(fast).count("Convolution") - operators(fast).count("_ones") == count
    compare(plain, fast, (4, 3, 5, 3), weights)


def test_prelus_that_no_neighbor_can_scale_for() -> None:
    """Not a number; after BatchNorms without attributes or along the width; computed slopes."""
    steep = {"slope": mx.nd.array([0.25, float("nan"), 0.25])}
    # A slope whose shape only another node tells.
    other = mx.sym.elemwise_add(SLOPE, mx.sym.var("other", shape=(3,)))
    for plain, weights in (
        (bent(NORM), steep),
        (bent(mx.sym.BatchNorm(DATA)), {}),
        (bent(norm(DATA, axis=3)), {}),
        (mx.sym.Group([bent(norm(DATA), 2 * SLOPE), other])[0], {}),
    ):
        assert operators(prelu.rewrite(plain, (3, 5, 3), weights)).count("Convolution") == 2
    without = backbones.build("tiny", embedding_size=16)
    assert operators(prelu.rewrite(without, (3, 112, 112))) == operators(without)


@pytest.mark.parametrize(("outputs", "attributes", "count"), [
    # The kernel gets the signs: depthwise, or of one pixel.
    (24, {"num_group": 24}, 2), (24, {"num_group": 24, "kernel": (3, 3)}, 2), (16, {}, 2),
    (48, {"no_bias": True}, 2),
    # Of several pixels, in groups of channels.
    (24, {"kernel": (3, 3)}, 1), (24, {"num_group": 2}, 1), (48, {"num_group": 24}, 1),
])  # fmt: skip
def test_two_batch_norms_apply_the_factors_of_a_prelu(
    outputs: int, attributes: dict[str, Any], count: int
) -> None:
    # 24 channels are padded to two blocks.
    maps = norm(conv(DATA, "first", 24, no_bias=True))
    kernel = {"kernel": (1, 1), **attributes}
    plain = mx.sym.Convolution(bent(maps), num_filter=outputs, name="w", **kernel)
    fast = prelu.rewrite(plain, (4, 5, 3))
    assert operators(fast).count("BatchNorm") == count and "PReLU" not in operators(fast)
    generator, weights = np.random.default_rng(3), {}
    shapes, *_ = plain.infer_shape(data=(4, 4, 5, 3))
    for name, shape in zip(plain.list_arguments(), shapes):
        if name != "data":
            weights[name] = mx.nd.array(generator.standard_normal(shape))
    slopes = generator.uniform(-2, 4, 24)
    slopes[:3] = 1, 0, -1
    weights |= {"bn_moving_mean": mx.nd.zeros(24), "bn_moving_var": mx.nd.ones(24)}
    weights["slope"] = mx.nd.array(slopes)
    # MXNet computes two outputs of each channel without oneDNN; then a PReLU writes the gradient of
    # its input over that of its output, and computes the slope's of what it has written.
    if outputs < 48 or "num_group" not in attributes:
        compare(plain, fast, (4, 4, 5, 3), weights)


TILES, VECTORS = "AMX", "AVX-512"


def grouped(x: Any, name: str, channels: int, groups: int = 1) -> Any:
    return conv(x, name, channels, num_group=groups, no_bias=True)


def pooled(x: Any, name: str) -> Any:
    return mx.sym.Pooling(x, kernel=(8, 8), global_pool=True, pool_type="avg", name=name)


PIXELS = grouped(DATA, "pixels", 64)


def network() -> Any:
    x = norm(PIXELS, "norm0", eps=1e-3)
    y = grouped(act(x, name="relu1"), "depthwise", 64, 64)
    y = norm(grouped(y, "grouped", 64, 16), "norm1", eps=1e-3)
    y = act(y, "leaky", "leaky")
    gates = act(pooled(y, "means"), "sigmoid", "weights")
    y = mx.sym.elemwise_add(x, mx.sym.broadcast_mul(y, gates), name="sum")
    y = pooled(grouped(y, "odd", 48), "pooled")
    return mx.sym.FullyConnected(y, num_hidden=8, name="last")


def rewritten(graph: Any, unit: str, channels: int = 3) -> Any:
    with patch.object(environment, "bfloat16_unit", lambda: unit):
        return narrow.rewrite(graph, (1, channels, 8, 8))


def is_narrow(symbol: Any, name: str) -> bool:
    """True if the output of a node is bfloat16, by the program's own inference of types."""
    internals = symbol.get_internals()
    _, types, _ = internals.infer_type(data=np.float32)
    return dict(zip(internals.list_outputs(), types))[f"{name}_output"] is not np.float32


def test_what_is_narrow_and_what_groups_are_joined() -> None:
    plain = network()
    for unit, is_odd, groups in (
        # 48 channels are one and a half tiles, and three registers.
        (TILES, False, {"depthwise": "2", "grouped": "2", "pixels": "1"}),
        (VECTORS, True, {"depthwise": "64", "grouped": "4", "pixels": "1"}),
    ):
        fast = rewritten(plain, unit)
        expected = dict.fromkeys(("pixels", "depthwise", "grouped", "leaky", "sum"), True)
        # The means are maps of one pixel.
        expected |= {"means": False, "odd": is_odd, "last": False}
        assert {name: is_narrow(fast, name) for name in expected} == expected, unit
        nodes = nodes_of(fast)
        assert {name: nodes[name]["attrs"]["num_group"] for name in groups} == groups
        assert sorted(fast.list_arguments()) == sorted(plain.list_arguments())
        assert fast.list_auxiliary_states() == plain.list_auxiliary_states()
        assert fast.list_outputs() == plain.list_outputs()
        for types in fast.infer_type(data=np.float32):
            assert set(types) == {np.float32}
    for count, fits in ((24, False), (32, True)):
        graph = rewritten(grouped(DATA, "depthwise", count, count), VECTORS, count)
        assert is_narrow(graph, "depthwise") == fits
    # Vectors leave maps of pixels in the plain layout, in which a BatchNorm has a slow kernel.
    added = mx.sym.elemwise_add(PIXELS, grouped(PIXELS, "second", 64), name="sum")
    again = norm(act(norm(PIXELS, "norm"), name="relu"), "again")
    for graph, ones in ((added, "sum_0_ones"), (again, "norm_laid_out_ones")):
        for unit, names in ((TILES, []), (VECTORS, [ones])):
            nodes = nodes_of(rewritten(graph, unit))
            assert [name for name, node in nodes.items() if node["op"] == "_ones"] == names


# oneDNN has bfloat16 for registers of 512 bits, where it computes without tiles as well.
@pytest.mark.skipif(not processors.has_avx512(), reason="bfloat16 needs AVX-512")
@pytest.mark.parametrize("unit", [TILES, VECTORS])
def test_steps_are_the_plain_graphs_up_to_rounding(unit, monkeypatch) -> None:
    plain = network()
    weights = initial_weights(plain, (3, 8, 8), seed=1)
    # bfloat16 has eight bits: each operator rounds by up to 2^-9 of its result.
    assert 0 < compare(plain, rewritten(plain, unit), (16, 3, 8, 8), weights, 0.05, 1e-3) < 0.02
    # MXNet writes graphs without casts unless told otherwise; parts are cut of what it writes.
    monkeypatch.setattr(environment, "bfloat16_unit", lambda: unit)
    settings: Any = {"side": 32, "dtype": "bfloat16"}
    images = IMAGES[..., :32, :32]
    whole, parts = (passes.create(**settings, recompute=is_cut) for is_cut in (False, True))
    found, expected = (passes.train(one, images, updates=1) for one in (parts, whole))
    passes.assert_same(found, expected)
