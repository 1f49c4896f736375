"""Graphs cut at their BatchNorms: every node once, each level after those that it reads from."""

from __future__ import annotations

from typing import Any

import pytest

import backbones
from backbones.classifiers import Normalization
from backbones.classifiers import build as build_classifier
from backbones.graph.levels import Level, cut
from backbones.graph.onednn import prelu
from backbones.layers import Symbol
from runtime.mxnet import mx

CLASSIFIERS = ["ResNet18", "DenseNet121", "DPN92", "DLA", "inceptionv3"]
GRAY = Normalization((0.5,) * 3, (0.25,) * 3)
# Not of the whole graph: given statistics, a fixed gamma, and what one level passes to another.
OWN = ("_given_mean", "_given_variance", "_one")


def norm(x: Symbol, name: str, **settings: Any) -> Symbol:
    return mx.sym.BatchNorm(x, name=name, fix_gamma=False, **settings)


def conv(x: Symbol, name: str, **more: Any) -> Symbol:
    return mx.sym.Convolution(x, num_filter=3, kernel=(1, 1), no_bias=True, name=name, **more)


def parameters(level: Level) -> list[str]:
    return [name for name in level.symbol.list_inputs() if ":" not in name and name != "data"]


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


@pytest.mark.parametrize("name", ["mbf", "r18-se", "mbf on a CPU", *CLASSIFIERS])
def test_every_parameter_is_in_one_level(name: str) -> None:
    if name in CLASSIFIERS:
        symbol = build_classifier(name, classes=10, normalization=GRAY)
    else:
        symbol = backbones.build(name.split()[0], embedding_size=16)
    if name.endswith("CPU"):
        # There a PReLU's slope is used by the BatchNorm before it as well.
        symbol = prelu.rewrite(symbol, (112, 112))
    levels = cut(symbol)
    known = {"data"}
    found: list[str] = []
    for level in levels:
        assert {tensor.name for tensor in level.inputs} <= known
        known |= {tensor.name for tensor in level.outputs}
        given = {name for one in level.norms for name in one.statistics}
        assert set(level.symbol.list_auxiliary_states()) == given
        found += [name for name in parameters(level) if not name.endswith(OWN)]
        fixed = [one.gamma for one in level.norms if one.has_fixed_gamma]
        found += [name[: -len("_one")] + "_gamma" for name in fixed]
    assert sorted(found) == sorted(set(symbol.list_arguments()) - {"data"})
    running = [name for level in levels for one in level.norms for name in one.running]
    assert sorted(running) == sorted(symbol.list_auxiliary_states())
    assert len(levels[-1].outputs) == 1
