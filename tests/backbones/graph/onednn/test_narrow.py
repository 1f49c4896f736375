"""The graph in bfloat16 is the plain one up to rounding, and wastes no tile and no register."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

import backbones
from backbones.graph.nodes import to_json
from backbones.graph.onednn import form, narrow, prelu
from backbones.model import Backbone
from backbones.network import Network
from backbones.options import BackboneOptions
from runtime import processors
from runtime.environment import Bfloat16Unit
from runtime.mxnet import mx

BLOCK = 16
SHAPE = (1, 3, 8, 8)
# oneDNN has bfloat16 for registers of 512 bits, where it computes without tiles as well.
needs_avx512 = pytest.mark.skipif(not processors.has_avx512(), reason="bfloat16 needs AVX-512")


TILES, VECTORS = Bfloat16Unit.TILES, Bfloat16Unit.VECTORS
of_each_unit = pytest.mark.parametrize("unit", [TILES, VECTORS])


def convolution(x: Any, name: str, channels: int, groups: int = 1, kernel: int = 3) -> Any:
    size, pad = (kernel, kernel), (kernel // 2, kernel // 2)
    return mx.sym.Convolution(
        x, num_filter=channels, num_group=groups, kernel=size, pad=pad, no_bias=True, name=name
    )


def norm(x: Any, name: str) -> Any:
    return mx.sym.BatchNorm(x, fix_gamma=False, eps=1e-3, name=name)


def network() -> Any:
    """Dense, grouped and depthwise layers, functions, and a sum of what is narrow or not."""
    x = norm(convolution(mx.sym.var("data"), "pixels", 64), "norm0")
    y = mx.sym.Activation(x, act_type="relu", name="relu1")
    y = convolution(convolution(y, "depthwise", 64, 64), "grouped", 64, 16)
    y = mx.sym.LeakyReLU(norm(y, "norm1"), act_type="leaky", slope=0.1, name="leaky")
    means = mx.sym.Pooling(y, kernel=(8, 8), global_pool=True, pool_type="avg", name="means")
    y = mx.sym.broadcast_mul(y, mx.sym.Activation(means, act_type="sigmoid", name="weights"))
    y = convolution(mx.sym.elemwise_add(x, y, name="sum"), "odd", 48)
    y = mx.sym.Pooling(y, kernel=(8, 8), global_pool=True, pool_type="avg", name="pooled")
    return mx.sym.FullyConnected(y, num_hidden=8, name="last")


def nodes_of(symbol: Any) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in to_json(symbol)["nodes"]}


def is_narrow(symbol: Any, name: str) -> bool:
    """Whether a node's inputs of maps are bfloat16, by the program's own inference of types."""
    internals = symbol.get_internals()
    _, types, _ = internals.infer_type(data=np.float32)
    found = dict(zip(internals.list_outputs(), types))
    return found[f"{name}_output"] is not np.float32


@pytest.mark.parametrize(
    ("name", "tiles", "vectors"),
    [
        ("pixels", True, True),
        ("depthwise", True, True),
        ("grouped", True, True),
        ("leaky", True, True),
        ("sum", True, True),
        # Of one pixel.
        ("means", False, False),
        # 48 channels are one and a half tiles, and three registers.
        ("odd", False, True),
        ("last", False, False),
    ],
)
def test_what_is_narrow(name: str, tiles: bool, vectors: bool) -> None:
    for unit, expected in ((TILES, tiles), (VECTORS, vectors)):
        fast = narrow.rewrite(network(), SHAPE, BLOCK, unit)
        assert is_narrow(fast, name) == expected


@of_each_unit
def test_parameters_are_those_of_the_plain_graph_in_float32(unit: Bfloat16Unit) -> None:
    plain = network()
    fast = narrow.rewrite(plain, SHAPE, BLOCK, unit)
    assert sorted(fast.list_arguments()) == sorted(plain.list_arguments())
    assert fast.list_auxiliary_states() == plain.list_auxiliary_states()
    assert fast.list_outputs() == plain.list_outputs()
    types, outputs, states = fast.infer_type(data=np.float32)
    assert set(types) == set(outputs) == set(states) == {np.float32}


@pytest.mark.parametrize(
    ("name", "tiles", "vectors"),
    [("depthwise", "2", "64"), ("grouped", "2", "4"), ("pixels", "1", "1")],
)
def test_groups_fill_tiles_and_registers(name: str, tiles: str, vectors: str) -> None:
    for unit, expected in ((TILES, tiles), (VECTORS, vectors)):
        found = nodes_of(narrow.rewrite(network(), SHAPE, BLOCK, unit))[name]
        assert found["attrs"]["num_group"] == expected


@pytest.mark.parametrize(("channels", "expected"), [(24, False), (32, True)])
def test_depthwise_convolutions_fill_registers(channels: int, expected: bool) -> None:
    graph = convolution(mx.sym.var("data"), "depthwise", channels, channels)
    fast = narrow.rewrite(graph, (1, channels, 8, 8), BLOCK, VECTORS)
    assert is_narrow(fast, "depthwise") == expected


@pytest.mark.parametrize(("unit", "count"), [(TILES, 0), (VECTORS, 1)])
def test_addends_have_one_layout(unit: Bfloat16Unit, count: int) -> None:
    """Vectors leave the maps made of pixels in the plain layout, tiles do not."""
    x = convolution(mx.sym.var("data"), "pixels", 64)
    y = convolution(x, "second", 64)
    fast = nodes_of(narrow.rewrite(mx.sym.elemwise_add(x, y, name="sum"), SHAPE, BLOCK, unit))
    ones = [name for name, node in fast.items() if node["op"] == "_ones"]
    assert ones == ["sum_0_ones"][:count]


@pytest.mark.parametrize(("unit", "count"), [(TILES, 0), (VECTORS, 1)])
def test_statistics_are_of_maps_in_the_layout_of_convolutions(
    unit: Bfloat16Unit, count: int
) -> None:
    """A BatchNorm of the plain layout has a slow kernel."""
    x = norm(convolution(mx.sym.var("data"), "pixels", 64), "norm")
    x = norm(mx.sym.Activation(x, act_type="relu", name="relu"), "again")
    fast = nodes_of(narrow.rewrite(x, SHAPE, BLOCK, unit))
    assert [name for name, node in fast.items() if node["op"] == "_ones"] == (
        ["norm_laid_out_ones"][:count]
    )


@of_each_unit
def test_one_cast_for_all_who_read_it(unit: Bfloat16Unit) -> None:
    x = convolution(mx.sym.var("data"), "first", 32)
    both = convolution(x, "second", 48) + mx.sym.slice_axis(convolution(x, "third", 96), 1, 0, 48)
    fast = narrow.rewrite(norm(both, "norm"), (1, 32, 8, 8), BLOCK, unit)
    names = [node["inputs"][0][0] for node in to_json(fast)["nodes"] if node["op"] == "amp_cast"]
    assert len(names) == len(set(names))


def trained(symbol: Any, images: Any, gradient: Any) -> tuple[Any, dict[str, Any]]:
    """The outputs of a training pass, and the gradient of every parameter."""
    plain = network()
    generator = np.random.default_rng(1)
    shapes, _, states = plain.infer_shape(data=images.shape)
    names = [*plain.list_arguments(), *plain.list_auxiliary_states()]
    weights = {
        name: mx.nd.array(
            np.ones(shape) if len(shape) == 1 else generator.normal(size=shape) / shape[1] ** 0.5
        )
        for name, shape in zip(names, [*shapes, *states])
        if name != "data"
    }
    made = Network(symbol, plain, weights, mx.cpu())
    with mx.autograd.record():
        outputs = made(mx.nd.array(images))
    made.backward(outputs, mx.nd.array(gradient))
    return outputs.asnumpy(), {
        name: one.grad().asnumpy()
        for name, one in made.parameters.items()
        if one.grad_req != "null"
    }


@needs_avx512
@of_each_unit
def test_outputs_and_gradients_are_the_plain_graphs_up_to_rounding(unit: Bfloat16Unit) -> None:
    generator = np.random.default_rng(2)
    images = generator.normal(size=(16, 3, 8, 8)).astype(np.float32)
    gradient = generator.normal(size=(16, 8)).astype(np.float32)
    expected, gradients = trained(network(), images, gradient)
    outputs, found = trained(narrow.rewrite(network(), SHAPE, BLOCK, unit), images, gradient)
    # bfloat16 has eight bits: each operator rounds by up to 2^-9 of its result.
    assert 0 < np.abs(outputs - expected).max() < 0.02 * np.abs(expected).max()
    assert found.keys() == gradients.keys()
    largest = max(np.linalg.norm(one) for one in gradients.values())
    for name, one in gradients.items():
        error = np.linalg.norm(found[name] - one)
        assert error < 0.05 * np.linalg.norm(one) + 1e-3 * largest, name


def test_prelu_leaves_convolutions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """By tiles a second convolution takes longer than the passes that it would save."""
    monkeypatch.setattr(form, "bfloat16_unit", lambda: TILES)
    plain = backbones.build("mbf", embedding_size=32)
    wide, fast = (
        prelu.rewrite(plain, (112, 112), dtype=one) for one in ("float32", "bfloat16")
    )
    doubled = {name for name in nodes_of(wide) if name.endswith("_linear")}
    assert doubled and not doubled & nodes_of(fast).keys()


@pytest.mark.parametrize(
    ("unit", "expected"), [(TILES, "bfloat16"), (VECTORS, "bfloat16"), (None, "float32")]
)
def test_without_a_unit_it_is_float32_and_says_so(
    unit: Optional[Bfloat16Unit],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(form, "bfloat16_unit", lambda: unit)
    assert form.usable_dtype("bfloat16") == expected
    assert bool(caplog.records) is (unit is None)
    caplog.clear()
    assert form.usable_dtype("float32") == "float32" and not caplog.records


@needs_avx512
@of_each_unit
def test_parts_of_a_graph_keep_their_casts(
    unit: Bfloat16Unit, images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MXNet writes graphs without them unless told otherwise; parts are cut of what it writes."""
    monkeypatch.setattr(form, "bfloat16_unit", lambda: unit)
    found = []
    for recompute in (False, True):
        options = BackboneOptions("bfloat16", network="tiny", recompute=recompute)
        made = Backbone.create(options, seed=1)
        with mx.autograd.record():
            outputs = made(mx.nd.array(images))
        made.backward(outputs, mx.nd.ones_like(outputs))
        gradient = made.parameters["conv0_weight"].grad()
        found.append((outputs.asnumpy(), gradient.asnumpy()))
    for whole, parts in zip(*found):
        assert np.array_equal(whole, parts)
