"""Ranks that normalize together compute what one process with the whole batch computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backbones.graph.onednn import prelu
from backbones.layers import Symbol
from backbones.model import Backbone
from backbones.network import initial_weights
from parallel.world import LoneWorld
from runtime.errors import ConfigError
from runtime.mxnet import mx
from tests.support.thread_world import run_ranks

IMAGES, SIDE, OUTPUTS = 12, 8, 5


def norm(x: Symbol, name: str, *, fixed: bool = False, **settings: Any) -> Symbol:
    return mx.sym.BatchNorm(x, name=name, fix_gamma=fixed, **settings)


def smooth(x: Symbol) -> Symbol:
    """Without a bend, on two sides of which rounding would put numbers."""
    return mx.sym.Activation(x, act_type="tanh")


def conv(x: Symbol, name: str, channels: int = 8) -> Symbol:
    return mx.sym.Convolution(
        x, num_filter=channels, kernel=(3, 3), pad=(1, 1), no_bias=True, name=name
    )


def everything() -> Symbol:
    """What a level can have: tensors for several levels, several BatchNorms, several outputs."""
    pixels = norm(mx.sym.var("data"), "pixels", fixed=True)
    first = conv(pixels, "first")
    # Read by three levels, in each of which something normalizes it.
    a = smooth(norm(first, "a"))
    b = conv(smooth(norm(mx.sym.concat(first, a, dim=1), "b", momentum=0.7)), "second")
    shortcuts = norm(first, "fixed", fixed=True) + norm(first, "same", eps=1e-2)
    c = norm(mx.sym.elemwise_add(norm(b, "c") + first, shortcuts), "d", axis=1)
    halves = mx.sym.SliceChannel(c, num_outputs=2, axis=1, name="halves")
    joined = mx.sym.concat(norm(halves[1], "e"), halves[0] * 0.5, dim=1)
    pooled = mx.sym.Pooling(smooth(joined), global_pool=True, pool_type="avg", kernel=(1, 1))
    linear = mx.sym.FullyConnected(pooled, num_hidden=OUTPUTS, no_bias=True, name="linear")
    return norm(linear, "out", fixed=True)


def with_prelu() -> Symbol:
    """A CPU's form, in which BatchNorms get a gamma and beta that are computed."""
    x = conv(mx.sym.var("data") * 0.01, "first")
    x = mx.sym.LeakyReLU(norm(x, "a"), act_type="prelu", name="relu")
    x = mx.sym.LeakyReLU(norm(conv(x, "second"), "b"), act_type="prelu", name="relu2")
    linear = mx.sym.FullyConnected(x, num_hidden=OUTPUTS, no_bias=True, name="linear")
    return norm(linear, "out")


GRAPHS = {"everything": everything, "with_prelu": with_prelu}


def make(graph: str) -> Backbone:
    symbol = GRAPHS[graph]()
    weights = initial_weights(symbol, (3, SIDE, SIDE), seed=4)
    generator = np.random.default_rng(6)
    for name, array in weights.items():
        if name.endswith(("_gamma", "_beta")):
            # 1 for a slope: rounding decides on which side of a bend a number is.
            array[:] = 1 if "relu" in name else generator.uniform(0.5, 1.5, array.shape)
    trained = prelu.rewrite(symbol, (SIDE, SIDE), weights) if graph == "with_prelu" else symbol
    backbone = Backbone(trained, symbol, weights, mx.cpu())
    backbone.hybridize()
    return backbone


def train(graph: str, world: Any, *, synchronize: bool = True) -> dict[str, np.ndarray]:
    """Outputs of this rank, the sums of gradients over the ranks, and statistics, of 2 updates."""
    backbone = make(graph)
    if synchronize:
        backbone.synchronize(world)
    generator = np.random.default_rng(5)
    count = IMAGES // world.size
    own = slice(world.rank * count, (world.rank + 1) * count)
    found: dict[str, np.ndarray] = {}
    for update in range(2):
        images = generator.integers(256, size=(IMAGES, 3, SIDE, SIDE)).astype(np.uint8)
        gradient = generator.normal(size=(IMAGES, OUTPUTS)).astype(np.float32) / IMAGES
        with mx.autograd.record():
            features = backbone(mx.nd.array(images[own]))
        backbone.backward(features, mx.nd.array(gradient[own]))
        found[f"features {update}"] = features.asnumpy()
        for name, parameter in backbone.parameters.items():
            if parameter.grad_req != "null":
                total = world.allreduce(parameter.grad().copy(), f"test.{name}")
                found[f"{name} {update}"] = total.asnumpy()
    found.update(zip(backbone._statistic_names, (one.asnumpy() for one in backbone.statistics)))
    return found


@pytest.mark.parametrize(
    ("graph", "ranks"), [("everything", 1), ("everything", 3), ("with_prelu", 2)]
)
def test_ranks_compute_what_the_whole_batch_gives(graph: str, ranks: int) -> None:
    expected = train(graph, LoneWorld(), synchronize=False)
    all_found = run_ranks(ranks, lambda world: train(graph, world))
    for rank, found in enumerate(all_found):
        assert found.keys() == expected.keys()
        own = slice(rank * IMAGES // ranks, (rank + 1) * IMAGES // ranks)
        for name, values in expected.items():
            wanted = values[own] if name.startswith("features") else values
            error = np.abs(found[name] - wanted).max()
            # Some gradients are rounding alone, as that of a shift before a BatchNorm.
            assert error <= 2e-5 * np.abs(values).max() + 5e-6, (name, error)
            if "moving" in name:
                assert np.array_equal(found[name], all_found[0][name]), name


def test_evaluation_uses_running_statistics_and_asks_no_other_rank(monkeypatch) -> None:
    backbone, plain = make("everything"), make("everything")
    images = mx.nd.array(np.random.default_rng(2).integers(256, size=(2, 3, SIDE, SIDE)))
    expected = plain(images).asnumpy()
    backbone.synchronize(LoneWorld())
    with monkeypatch.context() as patch:
        # A rank may be alone here.
        patch.setattr(LoneWorld, "allgather", None)
        assert np.array_equal(backbone(images).asnumpy(), expected)
    with mx.autograd.record():
        features = backbone(images)
    backbone.backward(features, mx.nd.ones_like(features))
    with pytest.raises(AssertionError, match="backward pass is over"):
        backbone.backward(features, mx.nd.ones_like(features))
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=OUTPUTS, name="fc1")
    weights = initial_weights(symbol, (3, SIDE, SIDE), seed=0)
    with pytest.raises(ConfigError, match="--sync-bn needs BatchNorm"):
        Backbone(symbol, symbol, weights, mx.cpu()).synchronize(LoneWorld())
