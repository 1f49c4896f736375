"""Graphs cut at their BatchNorms; ``test_synchronized`` compares what the levels compute."""

from __future__ import annotations

from typing import Any

import pytest

import backbones
from backbones.graph.levels import Level, cut
from backbones.graph.onednn import prelu
from backbones.layers import Symbol
from runtime.mxnet import mx


def norm(x: Symbol, name: str, **settings: Any) -> Symbol:
    return mx.sym.BatchNorm(x, name=name, fix_gamma=False, **settings)


def conv(x: Symbol, name: str, **more: Any) -> Symbol:
    return mx.sym.Convolution(x, num_filter=3, kernel=(1, 1), no_bias=True, name=name, **more)


def parameters(level: Level) -> list[str]:
    names = level.symbol.list_inputs()
    return [name for name in names if ":" not in name and name != "data" and name[-4:] != "_one"]


def test_a_frozen_norm_stays_where_it_is() -> None:
    (level,) = cut(norm(conv(mx.sym.var("data"), "conv"), "frozen", use_global_stats=True))
    assert level.symbol.list_auxiliary_states() == ["frozen_moving_mean", "frozen_moving_var"]
    assert not level.norms


def test_parameters_belong_to_one_batch_norm_and_one_level() -> None:
    """Their gradients are what its statistics need, and each level writes the whole of its own."""
    gamma, weight = mx.sym.var("gamma"), mx.sym.var("shared_weight")
    x = norm(conv(mx.sym.var("data"), "conv"), "a", gamma=gamma)
    for shared in (norm(x, "b", gamma=gamma), mx.sym.broadcast_mul(x, gamma)):
        with pytest.raises(AssertionError, match="'a' shares"):
            cut(shared)
    x = conv(mx.sym.var("data"), "first", weight=weight)
    with pytest.raises(AssertionError, match="shared_weight"):
        cut(conv(norm(x, "a"), "second", weight=weight))
    # A PReLU's slope is used by the BatchNorm before it as well.
    symbol = prelu.rewrite(backbones.build("mbf", embedding_size=16), (112, 112))
    found = [name for level in cut(symbol) for name in parameters(level) if "given" not in name]
    assert sorted(found) == sorted({*symbol.list_arguments()} - {"data", "fc1_gamma"})
