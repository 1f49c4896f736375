"""Graphs cut at their BatchNorms: every node once, each level after those that it reads from."""

from __future__ import annotations

import pytest

import backbones
from backbones.classifiers import Normalization
from backbones.classifiers import build as build_classifier
from backbones.graph.levels import Level, Tensor, cut
from backbones.graph.onednn import prelu
from backbones.layers import Symbol
from runtime.mxnet import mx

SIZE = (112, 112)
GRAY = Normalization((0.5,) * 3, (0.25,) * 3)
# Not of the whole graph: given statistics, a fixed gamma, and what one level passes to another.
OWN = ("_given_mean", "_given_variance", "_one")


def norm(x: Symbol, name: str, **settings) -> Symbol:
    return mx.sym.BatchNorm(x, name=name, fix_gamma=False, **settings)


def conv(x: Symbol, name: str) -> Symbol:
    return mx.sym.Convolution(x, num_filter=4, kernel=(1, 1), no_bias=True, name=name)


def parameters(level: Level) -> list[str]:
    return [name for name in level.symbol.list_inputs() if ":" not in name and name != "data"]


def test_a_unit_with_a_projection() -> None:
    """Two BatchNorms of one level, a tensor that two levels read, and one that skips a level."""
    data = mx.sym.var("data")
    x = conv(data, "first")
    y = conv(mx.sym.Activation(norm(x, "a"), act_type="relu", name="relu"), "second")
    shortcut = norm(x, "projected", momentum=0.7, eps=1e-4)
    levels = cut(mx.sym.elemwise_add(norm(y, "b"), shortcut, name="sum"))

    first, second, third = levels
    assert [tensor.name for tensor in first.inputs] == ["data"]
    assert first.outputs == [Tensor("first:0", True)] and not first.norms
    assert second.inputs == first.outputs
    assert {tensor.name for tensor in second.outputs} == {"projected:0", "second:0"}
    assert [one.source.name for one in second.norms] == ["first:0"] * 2
    assert [one.momentum for one in second.norms] == [0.9, 0.7]
    assert [one.epsilon for one in second.norms] == [1e-3, 1e-4]
    assert [one.running for one in third.norms] == [["b_moving_mean", "b_moving_var"]]
    assert [tensor.name for tensor in third.outputs] == ["sum:0"]


def test_the_image_has_no_gradient() -> None:
    data = mx.sym.var("data")
    scaled = mx.sym.BatchNorm(data * 2.0, name="pixels")
    _, level, *_ = cut(norm(conv(scaled, "conv"), "last"))
    (pixels,) = level.norms
    assert not pixels.source.has_gradient
    assert pixels.has_fixed_gamma and pixels.gamma == "pixels_one"
    assert all(tensor.has_gradient for tensor in level.outputs)


def test_a_batch_norm_with_running_statistics_stays_where_it_is() -> None:
    x = norm(conv(mx.sym.var("data"), "conv"), "frozen", use_global_stats=True)
    (level,) = cut(x)
    assert level.symbol.list_auxiliary_states() == ["frozen_moving_mean", "frozen_moving_var"]
    assert not level.norms


@pytest.mark.parametrize("second", [True, False])
def test_parameters_of_a_batch_norm_belong_to_it(second: bool) -> None:
    """Their gradients are what its statistics need, and so must be of nothing else."""
    gamma = mx.sym.var("gamma")
    x = norm(conv(mx.sym.var("data"), "conv"), "a", gamma=gamma)
    x = norm(x, "b", gamma=gamma) if second else mx.sym.broadcast_mul(x, gamma)
    with pytest.raises(AssertionError, match="'a' shares"):
        cut(x)


def test_levels_share_no_parameter() -> None:
    weight = mx.sym.var("shared_weight")
    x = mx.sym.Convolution(
        mx.sym.var("data"), weight, num_filter=3, kernel=(1, 1), no_bias=True, name="first"
    )
    x = mx.sym.Convolution(
        norm(x, "a"), weight, num_filter=3, kernel=(1, 1), no_bias=True, name="second"
    )
    with pytest.raises(AssertionError, match="shared_weight"):
        cut(x)


@pytest.mark.parametrize("on_cpu", [False, True])
@pytest.mark.parametrize("name", ["tiny", "mbf", "r18", "r18-se"])
def test_every_parameter_is_in_one_level(name: str, on_cpu: bool) -> None:
    symbol = backbones.build(name, embedding_size=16)
    if on_cpu:
        # There a PReLU's slope is used by the BatchNorm before it as well.
        symbol = prelu.rewrite(symbol, SIZE)
    check(symbol)


@pytest.mark.parametrize("name", ["ResNet18", "DenseNet121", "DPN92", "DLA", "inceptionv3"])
def test_every_parameter_of_a_classifier_is_in_one_level(name: str) -> None:
    check(build_classifier(name, classes=10, normalization=GRAY))


def check(symbol: Symbol) -> None:
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
