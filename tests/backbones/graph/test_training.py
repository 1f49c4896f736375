"""Training passes: frozen, recomputed, in parts, of several ranks, and in a device's graph."""

import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

import backbones
from backbones.graph import frozen, synchronized
from backbones.graph.nodes import to_json
from backbones.graph.onednn import prelu
from backbones.graph.passes import cut, output_elements, recomputed_elements
from backbones.model import Backbone
from backbones.network import for_device, initial_weights
from benchmarks.worker import Worker
from parallel.world import LoneWorld
from runtime.errors import ConfigError
from runtime.mxnet import mx
from tests.backbones import passes
from tests.backbones.passes import DATA, IMAGES, act, assert_same, conv, create, norm, train, values
from tests.support.thread_world import run_ranks

TINY = backbones.build("tiny", embedding_size=16)


@pytest.mark.parametrize(("patterns", "expected"), [
    ("", ""),
    ("conv0_weight bn0_gamma bn0_beta", "conv0_weight bn0_gamma bn0_beta"),
    ("bn0_*", "bn0_gamma bn0_beta bn0_moving_mean bn0_moving_var"),
    # One of the two statistics would contradict the other.
    ("bn0_moving_m*", "bn0_moving_mean bn0_moving_var"),
    ("fc1_gamm? pre_fc1_[bw]*", "fc1_gamma pre_fc1_bias pre_fc1_weight"),
])
def test_patterns_are_those_of_file_names(patterns: str, expected: str) -> None:
    assert frozen.find(patterns.split(), TINY) == {*expected.split()}


@pytest.mark.parametrize(("patterns", "message"), [
    ("conv0_* stage9_*", r"--freeze 'stage9_\*' fits no parameter .*; its first are conv0"),
    ("conv0_wieght", r"fits no parameter .* \(did you mean 'conv0_weight'\?\)"),
    ("CONV0*", "fits no parameter .*; its first are conv0_weight"),
    ("data", "fits no parameter"),
    ("*", r"--freeze \* leaves no parameter"),
    ("*_weight *_bias *_gamma *_beta", "leaves no parameter .*narrower"),
])
def test_other_patterns_are_refused_in_one_line(patterns: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        frozen.find(patterns.split(), TINY)
    assert "\n" not in str(caught.value)


def test_frozen_tensors_keep_their_bytes() -> None:
    first, found = ("conv0_*", "bn0_*", "stage1_*", "stage2_*"), []
    names = frozen.find(first, TINY)
    choices: list[dict[str, Any]] = [{}, {"recompute": True}, {"accumulate": 2}]
    for options in choices:
        backbone = create(freeze=first, **options)
        # As after some training: no statistic is that of the beginning.
        generator = np.random.default_rng(1)
        for name, parameter in backbone.parameters.items():
            if "_moving_" in name:
                low, high = (0.5, 2) if name.endswith("var") else (-0.5, 0.5)
                parameter.set_data(mx.nd.array(generator.uniform(low, high, parameter.shape)))
        before = values(backbone)
        # A BatchNorm of one embedding has no gradient.
        found.append(train(backbone, IMAGES[: 2 * options.get("accumulate", 1)]))
        after = values(backbone)
        assert_same({name: after[name] for name in names}, {name: before[name] for name in names})
        assert {backbone.parameters[name].grad_req for name in names} == {"null"}
        moved = [name for name in before.keys() - names if (after[name] != before[name]).any()]
        # All but a bias before a BatchNorm, and gammas that are held at one.
        assert len(names) > 8 and len(moved) > 0.9 * len(before.keys() - names) - 2
    # Recomputation stops at the first part that is trained.
    assert_same(found[1], found[0])


def workspaces(symbol: Any) -> set[Any]:
    nodes = to_json(symbol)["nodes"]
    return {node["attrs"].get("workspace") for node in nodes if node["op"] == "Convolution"}


@pytest.mark.parametrize(("ctx", "limit"), [(mx.cpu(), None), (mx.cpu(1), "256")])
def test_what_runs_on_a_device_has_the_limit(ctx, limit, tmp_path) -> None:
    backbone = create(side=32, ctx=ctx)
    backbone.export(tmp_path / "tiny")
    loaded = Backbone.load(tmp_path / "tiny", image_size=(32, 32), ctx=ctx)
    for network in (backbone, loaded):
        assert workspaces(network._trained) == {limit} and workspaces(network.graph) == {None}


def test_nothing_else_of_a_graph_changes() -> None:
    plain = backbones.build("mbf", dtype="float16", output="E")
    found = for_device(plain, mx.cpu(1), (3, 112, 112), {}, "float16")
    nodes, expected = to_json(found), to_json(plain)
    for node in expected["nodes"]:
        if node["op"] == "Convolution":
            node["attrs"]["workspace"] = "256"
        elif node["op"] == "Dropout":
            node["attrs"]["cudnn_off"] = "True"
    assert nodes == expected


@pytest.mark.parametrize(("name", "output", "side"), [
    *(("tiny", "GNAP", 112), ("r18", "E", 48)),
    pytest.param("mbf", "F", 112, marks=pytest.mark.thorough),
])
def test_two_updates_equal_those_of_the_whole_graph(name, output, side) -> None:
    images = IMAGES[..., :side, :side]
    whole, parts = (create(name, side, net_output=output, recompute=one) for one in (False, True))
    assert_same(train(parts, images[:2]), train(whole, images[:2]))
    np.testing.assert_array_equal(parts.extract(images[:1]), whole.extract(images[:1]))
    with pytest.raises(AssertionError, match="backward pass is over"):
        parts.backward(None, None)


def test_where_a_graph_is_cut_and_the_sizes_of_its_maps() -> None:
    parts = cut(mx.sym.elemwise_add(DATA, act(act(DATA), "tanh"), name="fc1"), (112, 112))
    assert [part.source for part in parts] == ["data"]
    assert parts[0].symbol.list_outputs() == ["fc1_output"]
    # Dropout is in the last part, and so drawn once.
    maps = DATA
    for number in range(4):
        maps = conv(maps, f"conv{number}", 4, 1, no_bias=True)
        maps = mx.sym.Dropout(maps, p=0.4, name="dropped") if number == 1 else maps
    parts = cut(maps, (8, 8))
    assert [part.source for part in parts] == ["data", "conv1"]
    assert "dropped_output" in parts[-1].symbol.get_internals().list_outputs()
    # The sizes of feature maps, by hand.
    x = norm(conv(DATA, "first", 4, no_bias=True))
    x = x + conv(x, "second", 4, no_bias=True)
    symbol = mx.sym.FullyConnected(x, num_hidden=2, name="features")
    maps = 4 * 8 * 6
    assert output_elements(symbol, (3, 8, 6)) == 4 * maps + 2
    # Cut after the norm and after the sum, which both parts before have as large outputs.
    assert recomputed_elements(symbol, (8, 6)) == (2 * maps, 2 * maps)


def test_each_part_counts_once() -> None:
    """The reference computes the same parts itself, the last one first, as BatchNorm sees them."""
    parts, reference = create(accumulate=2), create()
    found = train(parts, IMAGES, updates=1, lr=0)
    sums: dict[str, Any] = {}
    for rows in (slice(2, 4), slice(0, 2)):
        with mx.autograd.record():
            part = reference(mx.nd.array(IMAGES[rows], dtype="uint8"))
        reference.backward(part, passes.gradient_of((4, 16))[rows])
        expected = passes.results(reference, part)
        assert np.array_equal(found["features"][rows], expected.pop("features"))
        sums = {name: array + sums.get(name, 0) for name, array in expected.items()}
    for name, one in reference.parameters.items():
        if one.grad_req == "null":
            assert np.array_equal(found[name], expected[name]), name
        else:
            np.testing.assert_allclose(found[name], sums[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert np.array_equal(parts.extract(IMAGES[:3]), reference.extract(IMAGES[:3]))


def test_updates_and_parts_that_are_recomputed() -> None:
    """No update adds to the gradients of the one before."""
    plain = train(create(accumulate=2), IMAGES, lr=0)
    once = train(create(accumulate=2), IMAGES, updates=1, lr=0)
    recomputed = train(create(accumulate=2, recompute=True), IMAGES, lr=0)
    for name, expected in plain.items():
        if "_moving_" not in name:
            assert np.array_equal(once[name], expected), name
        np.testing.assert_allclose(recomputed[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_dropout_drops_the_same_when_a_part_runs_again() -> None:
    backbone, seen = create("tiny", accumulate=2, net_output="E"), []
    training: Any = backbone._training_pass
    run = training._part.forward

    def forward(part: Any) -> Any:
        features = run(part)
        seen.append(features.asnumpy())
        return features

    training._part.forward = forward
    train(backbone, np.repeat(IMAGES[:1], 4, axis=0), updates=1)
    first, last, again = seen
    assert np.array_equal(first, again)
    # Equal images: parts that drop the same would have equal features.
    assert not np.array_equal(first, last)


class InParts:
    def __init__(self, batch: int, parts: int) -> None:
        self.backbone = create("mbf", accumulate=parts)
        self.images = np.zeros((batch, 3, 112, 112), np.uint8)
        mx.nd.waitall()

    def step(self) -> None:
        train(self.backbone, self.images)


@pytest.mark.thorough
def test_the_memory_is_that_of_one_part() -> None:
    def peak(batch: int, parts: int) -> Any:
        with Worker("tests.backbones.graph.test_training:InParts", 2, sys.executable, {}) as worker:
            worker.create({"batch": batch, "parts": parts})
            worker.step()
            return worker.peak_memory()

    assert peak(16, parts=4) <= 1.1 * peak(4, parts=1) < 0.5 * peak(16, parts=1)


BATCH, SIDE, OUTPUTS = 12, 8, 5
plain = partial(conv, no_bias=True)


def linear(x: Any) -> Any:
    return mx.sym.FullyConnected(x, num_hidden=OUTPUTS, no_bias=True, name="linear")


def everything() -> Any:
    """What a level can have: tensors for several levels, several BatchNorms, several results."""
    first = plain(norm(DATA, "pixels", fix_gamma=True), "first")
    # Read by three levels, in each of which something normalizes it. Rounding would put numbers on
    # two sides of a bend, which tanh has not.
    a = act(norm(first, "a"), "tanh")
    b = plain(act(norm(mx.sym.concat(first, a, dim=1), "b", momentum=0.7), "tanh"), "second")
    shortcuts = norm(first, "fixed", fix_gamma=True) + norm(first, "same", eps=1e-2)
    c = norm(mx.sym.elemwise_add(norm(b, "c") + first, shortcuts), "d", axis=1)
    halves = [mx.sym.slice_axis(c, axis=1, begin=begin, end=begin + 4) for begin in (0, 4)]
    joined = mx.sym.concat(norm(halves[1], "e"), halves[0] * 0.5, dim=1)
    pooled = mx.sym.Pooling(act(joined, "tanh"), global_pool=True, pool_type="avg", kernel=(1, 1))
    return norm(linear(pooled), "out", fix_gamma=True)


def with_prelu() -> Any:
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
    trained = prelu.rewrite(symbol, (3, SIDE, SIDE), weights) if graph is with_prelu else symbol
    backbone = Backbone(trained, symbol, weights, mx.cpu())
    backbone.hybridize()
    return backbone


def two_updates(graph: Any, world: Any, *, synchronize: bool = True) -> dict[str, np.ndarray]:
    """Outputs of this rank, the sums of gradients over the ranks, and statistics, of 2 updates."""
    backbone = make(graph)
    if synchronize:
        backbone.synchronize(world)
    generator = np.random.default_rng(5)
    count = BATCH // world.size
    own = slice(world.rank * count, (world.rank + 1) * count)
    found: dict[str, np.ndarray] = {}
    for update in range(2):
        images = generator.integers(256, size=(BATCH, 3, SIDE, SIDE)).astype(np.uint8)
        gradient = generator.normal(size=(BATCH, OUTPUTS)).astype(np.float32) / BATCH
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
    expected = two_updates(graph, LoneWorld(), synchronize=False)
    all_found = run_ranks(ranks, lambda world: two_updates(graph, world))
    for rank, found in enumerate(all_found):
        assert found.keys() == expected.keys()
        own = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
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
    (level,) = synchronized.cut(norm(conv(DATA, "conv", 3, 1), "frozen", use_global_stats=True))
    assert level.symbol.list_auxiliary_states() == ["frozen_moving_mean", "frozen_moving_var"]
    assert not level.norms
    # Parameters belong to one level; a PReLU's slope is used by the BatchNorm before it as well.
    symbol = prelu.rewrite(backbones.build("mbf", embedding_size=16), (3, 112, 112))
    own = {*symbol.list_arguments()} - {"data", "fc1_gamma"}
    names = [name for level in synchronized.cut(symbol) for name in level.symbol.list_inputs()]
    assert sorted(name for name in names if name in own) == sorted(own)
