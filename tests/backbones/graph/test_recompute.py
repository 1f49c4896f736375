"""A training pass in parts computes what the pass through the whole graph computes."""

from __future__ import annotations

import numpy as np
import pytest

import backbones
from backbones.graph.onednn import prelu
from backbones.graph.recompute import cut
from backbones.model import Backbone
from backbones.options import BackboneOptions
from runtime.mxnet import mx

SIZE = (112, 112)


def train(name: str, images, *, recompute: bool):
    """Features, gradients and running statistics after two updates."""
    backbone = Backbone.create(
        BackboneOptions(network=name, embedding_size=16, recompute=recompute), seed=3
    )
    backbone.hybridize()
    trainer = mx.gluon.Trainer(backbone.parameters, "sgd", {"learning_rate": 0.1}, kvstore=None)
    gradient = mx.nd.array(np.random.default_rng(5).normal(size=(len(images), 16)) / 64)
    for _ in range(2):
        with mx.autograd.record():
            features = backbone(mx.nd.array(images))
        backbone.backward(features, gradient)
        trainer.update(1)
    gradients = {
        name: parameter.grad().asnumpy()
        for name, parameter in backbone.parameters.items()
        if parameter.grad_req != "null"
    }
    statistics = [array.asnumpy() for array in backbone.statistics]
    return features.asnumpy(), gradients, statistics, backbone.extract(images)


@pytest.mark.parametrize("name", ["tiny", "mbf", "r18"])
def test_two_updates_equal_those_of_the_whole_graph(name, images) -> None:
    features, gradients, statistics, extracted = train(name, images[:2], recompute=False)
    in_parts = train(name, images[:2], recompute=True)
    assert np.array_equal(in_parts[0], features)
    assert in_parts[1].keys() == gradients.keys()
    for key, expected in gradients.items():
        assert np.array_equal(in_parts[1][key], expected), key
    for own, expected in zip(in_parts[2], statistics):
        # A second update in the same step would move them by a tenth.
        assert np.array_equal(own, expected)
    assert np.array_equal(in_parts[3], extracted)


@pytest.mark.parametrize("on_cpu", [False, True])
@pytest.mark.parametrize("name", ["r50", "mbf", "tiny"])
def test_parts_follow_each_other_and_share_no_parameter(name, on_cpu: bool) -> None:
    symbol = backbones.build(name, embedding_size=16)
    if on_cpu:
        # There a PReLU's slope is used by the BatchNorm before it as well.
        symbol = prelu.rewrite(symbol, SIZE)
    parts = cut(symbol, SIZE)
    assert len(parts) > 2
    assert parts[0].source == "data"
    assert parts[-1].symbol.list_outputs() == ["fc1_output"]
    for part, following in zip(parts, parts[1:]):
        assert part.symbol.list_outputs() == [f"{following.source}_output"]
    inputs = [name for part in parts for name in part.symbol.list_inputs() if name != part.source]
    assert sorted(["data", *inputs]) == sorted(symbol.list_inputs())


def test_what_cannot_be_cut_is_one_part() -> None:
    data = mx.sym.var("data")
    long_way = mx.sym.Activation(mx.sym.Activation(data, act_type="relu"), act_type="tanh")
    parts = cut(mx.sym.elemwise_add(data, long_way, name="fc1"), SIZE)
    assert [part.source for part in parts] == ["data"]
    assert parts[0].symbol.list_outputs() == ["fc1_output"]


def test_a_second_backward_pass_needs_another_forward_pass(images) -> None:
    backbone = Backbone.create(BackboneOptions(network="tiny", embedding_size=16, recompute=True))
    with mx.autograd.record():
        features = backbone(mx.nd.array(images))
    gradient = mx.nd.ones_like(features)
    backbone.backward(features, gradient)
    with pytest.raises(AssertionError, match="backward pass is over"):
        backbone.backward(features, gradient)
