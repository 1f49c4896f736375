"""Ranks that normalize together compute what one process with the whole batch computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backbones
from backbones.graph.levels import cut
from backbones.graph.onednn import prelu
from backbones.model import Backbone
from backbones.network import initial_weights
from parallel.world import LoneWorld
from runtime.errors import ConfigError
from runtime.mxnet import mx
from tests.backbones.passes import DATA, act, conv, norm, values
from tests.support.thread_world import run_ranks

IMAGES, SIDE, OUTPUTS = 12, 8, 5


def plain(x: Any, name: str) -> Any:
    return conv(x, name, no_bias=True)


def smooth(x: Any) -> Any:
    """Without a bend, on two sides of which rounding would put numbers."""
    return act(x, "tanh")


def linear(x: Any) -> Any:
    return mx.sym.FullyConnected(x, num_hidden=OUTPUTS, no_bias=True, name="linear")


def everything() -> Any:
    """What a level can have: tensors for several levels, several BatchNorms, several outputs."""
    first = plain(norm(DATA, "pixels", fix_gamma=True), "first")
    # Read by three levels, in each of which something normalizes it.
    a = smooth(norm(first, "a"))
    b = plain(smooth(norm(mx.sym.concat(first, a, dim=1), "b", momentum=0.7)), "second")
    shortcuts = norm(first, "fixed", fix_gamma=True) + norm(first, "same", eps=1e-2)
    c = norm(mx.sym.elemwise_add(norm(b, "c") + first, shortcuts), "d", axis=1)
    halves = mx.sym.SliceChannel(c, num_outputs=2, axis=1, name="halves")
    joined = mx.sym.concat(norm(halves[1], "e"), halves[0] * 0.5, dim=1)
    pooled = mx.sym.Pooling(smooth(joined), global_pool=True, pool_type="avg", kernel=(1, 1))
    return norm(linear(pooled), "out", fix_gamma=True)


def with_prelu() -> Any:
    """A CPU's form, in which BatchNorms get a gamma and beta that are computed."""
    x = act(norm(plain(DATA * 0.01, "first"), "a"), "prelu", "relu")
    x = act(norm(plain(x, "second"), "b"), "prelu", "relu2")
    return norm(linear(x), "out")


def make(graph: Any) -> Backbone:
    symbol = graph()
    weights = initial_weights(symbol, (3, SIDE, SIDE), seed=4)
    generator = np.random.default_rng(6)
    for name, array in weights.items():
        if name.endswith(("_gamma", "_beta")):
            # 1 for a slope: rounding decides on which side of a bend a number is.
            array[:] = 1 if "relu" in name else generator.uniform(0.5, 1.5, array.shape)
    trained = prelu.rewrite(symbol, (SIDE, SIDE), weights) if graph is with_prelu else symbol
    backbone = Backbone(trained, symbol, weights, mx.cpu())
    backbone.hybridize()
    return backbone


def train(graph: Any, world: Any, *, synchronize: bool = True) -> dict[str, np.ndarray]:
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
    found.update((name, array) for name, array in values(backbone).items() if "moving" in name)
    return found


@pytest.mark.parametrize(("graph", "ranks"), [(everything, 1), (everything, 3), (with_prelu, 2)])
def test_ranks_compute_what_the_whole_batch_gives(graph: Any, ranks: int) -> None:
    expected = train(graph, LoneWorld(), synchronize=False)
    all_found = run_ranks(ranks, lambda world: train(graph, world))
    for rank, found in enumerate(all_found):
        assert found.keys() == expected.keys()
        own = slice(rank * IMAGES // ranks, (rank + 1) * IMAGES // ranks)
        for name, array in expected.items():
            wanted = array[own] if name.startswith("features") else array
            error = np.abs(found[name] - wanted).max()
            # Some gradients are rounding alone, as that of a shift before a BatchNorm.
            assert error <= 2e-5 * np.abs(array).max() + 5e-6, (name, error)
            if "moving" in name:
                assert np.array_equal(found[name], all_found[0][name]), name


def test_evaluation_uses_running_statistics_and_asks_no_other_rank(monkeypatch) -> None:
    backbone = make(everything)
    images = mx.nd.array(np.random.default_rng(2).integers(256, size=(2, 3, SIDE, SIDE)))
    expected = make(everything)(images).asnumpy()
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
    weights = initial_weights(linear(DATA), (3, SIDE, SIDE), seed=0)
    with pytest.raises(ConfigError, match="--sync-bn needs BatchNorm"):
        Backbone(linear(DATA), linear(DATA), weights, mx.cpu()).synchronize(LoneWorld())


def test_levels_that_are_cut_at_batch_norms() -> None:
    # A frozen one stays where it is.
    (level,) = cut(norm(conv(DATA, "conv", 3, 1), "frozen", use_global_stats=True))
    assert level.symbol.list_auxiliary_states() == ["frozen_moving_mean", "frozen_moving_var"]
    assert not level.norms
    # Parameters belong to one level; a PReLU's slope is used by the BatchNorm before it as well.
    symbol = prelu.rewrite(backbones.build("mbf", embedding_size=16), (112, 112))
    names = [name for level in cut(symbol) for name in level.symbol.list_inputs()]
    found = [name for name in names if ":" not in name and not name.endswith("_one")]
    found = [name for name in found if "given" not in name and name != "data"]
    assert sorted(found) == sorted({*symbol.list_arguments()} - {"data", "fc1_gamma"})
