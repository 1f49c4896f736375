"""The graph in bfloat16 is the plain one up to rounding, and wastes no tile and no register."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backbones
from backbones.graph.onednn import form, narrow, prelu
from backbones.network import initial_weights
from runtime import processors
from runtime.environment import Bfloat16Unit
from runtime.mxnet import mx
from tests.backbones.passes import (
    DATA,
    act,
    assert_same,
    compare,
    conv,
    create,
    nodes_of,
    norm,
    train,
)

# oneDNN has bfloat16 for registers of 512 bits, where it computes without tiles as well.
needs_avx512 = pytest.mark.skipif(not processors.has_avx512(), reason="bfloat16 needs AVX-512")
TILES, VECTORS = Bfloat16Unit.TILES, Bfloat16Unit.VECTORS
of_each_unit = pytest.mark.parametrize("unit", [TILES, VECTORS])


def grouped(x: Any, name: str, channels: int, groups: int = 1) -> Any:
    return conv(x, name, channels, num_group=groups, no_bias=True)


def pooled(x: Any, name: str) -> Any:
    return mx.sym.Pooling(x, kernel=(8, 8), global_pool=True, pool_type="avg", name=name)


PIXELS = grouped(DATA, "pixels", 64)


def network() -> Any:
    """Dense, grouped and depthwise layers, functions, and a sum of what is narrow or not."""
    x = norm(PIXELS, "norm0", eps=1e-3)
    y = grouped(act(x, name="relu1"), "depthwise", 64, 64)
    y = norm(grouped(y, "grouped", 64, 16), "norm1", eps=1e-3)
    y = act(y, "leaky", "leaky")
    gates = act(pooled(y, "means"), "sigmoid", "weights")
    y = mx.sym.elemwise_add(x, mx.sym.broadcast_mul(y, gates), name="sum")
    y = pooled(grouped(y, "odd", 48), "pooled")
    return mx.sym.FullyConnected(y, num_hidden=8, name="last")


def rewritten(graph: Any, unit: Bfloat16Unit, channels: int = 3) -> Any:
    return narrow.rewrite(graph, (1, channels, 8, 8), 16, unit)


def is_narrow(symbol: Any, name: str) -> bool:
    """Whether a node's inputs of maps are bfloat16, by the program's own inference of types."""
    internals = symbol.get_internals()
    _, types, _ = internals.infer_type(data=np.float32)
    found = dict(zip(internals.list_outputs(), types))
    return found[f"{name}_output"] is not np.float32


def test_what_is_narrow_and_what_groups_are_joined() -> None:
    plain = network()
    for unit, is_odd, groups in (
        # 48 channels are one and a half tiles, and three registers.
        (TILES, False, {"depthwise": "2", "grouped": "2", "pixels": "1"}),
        (VECTORS, True, {"depthwise": "64", "grouped": "4", "pixels": "1"}),
    ):
        fast = rewritten(plain, unit)
        expected = {
            **dict.fromkeys(("pixels", "depthwise", "grouped", "leaky", "sum"), True),
            # Of one pixel.
            **{"means": False, "odd": is_odd, "last": False},
        }
        assert {name: is_narrow(fast, name) for name in expected} == expected, unit
        nodes = nodes_of(fast)
        assert {name: nodes[name]["attrs"]["num_group"] for name in groups} == groups
        # Parameters are those of the plain graph, in float32.
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


@needs_avx512
@of_each_unit
def test_steps_are_the_plain_graphs_up_to_rounding(unit: Bfloat16Unit) -> None:
    plain = network()
    weights = initial_weights(plain, (3, 8, 8), seed=1)
    # bfloat16 has eight bits: each operator rounds by up to 2^-9 of its result.
    assert 0 < compare(plain, rewritten(plain, unit), (16, 3, 8, 8), weights, 0.05, 1e-3) < 0.02


@pytest.mark.parametrize("unit", [TILES, VECTORS, None])
def test_without_a_unit_it_is_float32_and_says_so(unit, monkeypatch, caplog) -> None:
    monkeypatch.setattr(form, "bfloat16_unit", lambda: unit)
    assert form.usable_dtype("float32") == "float32" and not caplog.records
    assert form.usable_dtype("bfloat16") == ("bfloat16" if unit else "float32")
    assert bool(caplog.records) is (unit is None)


def test_prelu_leaves_convolutions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """By tiles a second convolution takes longer than the passes that it would save."""
    monkeypatch.setattr(form, "bfloat16_unit", lambda: TILES)
    plain = backbones.build("mbf", embedding_size=32)
    wide, fast = (prelu.rewrite(plain, (112, 112), dtype=one) for one in ("float32", "bfloat16"))
    doubled = {name for name in nodes_of(wide) if name.endswith("_linear")}
    assert doubled and not doubled & nodes_of(fast).keys()


@needs_avx512
@of_each_unit
def test_parts_of_a_graph_keep_their_casts(unit, images, monkeypatch) -> None:
    """MXNet writes graphs without them unless told otherwise; parts are cut of what it writes."""
    monkeypatch.setattr(form, "bfloat16_unit", lambda: unit)
    whole, parts = (create(side=32, dtype="bfloat16", recompute=one) for one in (False, True))
    images = images[:, :, :32, :32]
    assert_same(train(parts, images, updates=1), train(whole, images, updates=1))
