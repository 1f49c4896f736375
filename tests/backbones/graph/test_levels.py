"""Graphs cut at their BatchNorms: every node once, each level after those that it reads from."""

from __future__ import annotations

from typing import Any

import pytest

import backbones
from backbones.classifiers import Normalization
from backbones.classifiers import build as build_classifier
from backbones.graph.levels import Level, Tensor, cut
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


def test_a_unit_with_a_projection() -> None:
    """Two BatchNorms of one level, a tensor that two levels read, and one that skips a level."""
    x = conv(mx.sym.var("data"), "first")
    y = conv(mx.sym.Activation(norm(x, "a"), act_type="relu", name="relu"), "second")
    shortcut = norm(x, "projected", momentum=0.7, eps=1e-4)
    first, second, third = cut(mx.sym.elemwise_add(norm(y, "b"), shortcut, name="sum"))
    assert [tensor.name for tensor in first.inputs] == ["data"]
    assert first.outputs == [Tensor("first:0", True)] and not first.norms
    assert second.inputs == first.outputs
    assert {tensor.name for tensor in second.outputs} == {"projected:0", "second:0"}
    assert [one.source.name for one in second.norms] == ["first:0"] * 2
    assert [one.momentum for one in second.norms] == [0.9, 0.7]
    assert [one.epsilon for one in second.norms] == [1e-3, 1e-4]
    assert [one.running for one in third.norms] == [["b_moving_mean", "b_moving_var"]]
    assert [tensor.name for tensor in third.outputs] == ["sum:0"]


def test_the_image_has_no_gradient_and_frozen_norms_stay() -> None:
    scaled = mx.sym.BatchNorm(mx.sym.var("data") * 2.0, name="pixels")
    _, level, *_ = cut(norm(conv(scaled, "conv"), "last"))
    (pixels,) = level.norms
    assert not pixels.source.has_gradient
    assert pixels.has_fixed_gamma and pixels.gamma == "pixels_one"
    assert all(tensor.has_gradient for tensor in level.outputs)
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
