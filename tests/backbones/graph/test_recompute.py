"""A training pass in parts computes what the pass through the whole graph computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backbones
from backbones.graph.onednn import prelu
from backbones.graph.recompute import cut
from backbones.model import Backbone
from backbones.options import BackboneOptions
from runtime.mxnet import mx

SIZE = (112, 112)


def train(name: str, output: str, images: np.ndarray, *, recompute: bool) -> dict[str, np.ndarray]:
    """Features, gradients, running statistics and embeddings after two updates."""
    options = BackboneOptions(
        network=name, net_output=output, embedding_size=16, recompute=recompute
    )
    backbone = Backbone.create(options, seed=3)
    backbone.hybridize()
    trainer = mx.gluon.Trainer(backbone.parameters, "sgd", {"learning_rate": 0.1}, kvstore=None)
    gradient = mx.nd.array(np.random.default_rng(5).normal(size=(len(images), 16)) / 64)
    for update in range(2):
        backbone.begin_update(update, rank=0)
        with mx.autograd.record():
            features = backbone(mx.nd.array(images))
        backbone.backward(features, gradient)
        trainer.update(1)
    found = {"features": features.asnumpy(), "extracted": backbone.extract(images)}
    for name, parameter in backbone.parameters.items():
        # A second update of statistics in the same step would move them by a tenth.
        array = parameter.data() if parameter.grad_req == "null" else parameter.grad()
        found[name] = array.asnumpy()
    return found


@pytest.mark.parametrize(("name", "output"), [("tiny", "GNAP"), ("mbf", "F"), ("r18", "E")])
def test_two_updates_equal_those_of_the_whole_graph(
    name: str, output: str, images: np.ndarray
) -> None:
    expected = train(name, output, images[:2], recompute=False)
    found = train(name, output, images[:2], recompute=True)
    assert found.keys() == expected.keys()
    for key, array in found.items():
        np.testing.assert_array_equal(array, expected[key], err_msg=key)


@pytest.mark.parametrize("on_cpu", [False, True])
@pytest.mark.parametrize("name", ["r50", "r18-se", "mbf", "tiny"])
def test_parts_follow_each_other_and_share_no_parameter(name: str, on_cpu: bool) -> None:
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


def test_where_a_graph_is_cut() -> None:
    data: Any = mx.sym.var("data")
    long_way = mx.sym.Activation(mx.sym.Activation(data, act_type="relu"), act_type="tanh")
    parts = cut(mx.sym.elemwise_add(data, long_way, name="fc1"), SIZE)
    assert [part.source for part in parts] == ["data"]
    assert parts[0].symbol.list_outputs() == ["fc1_output"]
    # Dropout is in the last part, and so drawn once.
    maps = data
    for number in range(4):
        name = f"conv{number}"
        maps = mx.sym.Convolution(maps, num_filter=4, kernel=(1, 1), no_bias=True, name=name)
        maps = mx.sym.Dropout(maps, p=0.4, name="dropped") if number == 1 else maps
    parts = cut(maps, (8, 8))
    assert [part.source for part in parts] == ["data", "conv1"]
    assert "dropped_output" in parts[-1].symbol.get_internals().list_outputs()


def test_a_second_backward_pass_needs_another_forward_pass(images: np.ndarray) -> None:
    backbone = Backbone.create(BackboneOptions(network="tiny", embedding_size=16, recompute=True))
    with mx.autograd.record():
        features = backbone(mx.nd.array(images))
    gradient = mx.nd.ones_like(features)
    backbone.backward(features, gradient)
    with pytest.raises(AssertionError, match="backward pass is over"):
        backbone.backward(features, gradient)
