"""Small graphs like those that InsightFace has published: read, run, exported and read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backbones.graph.symbol_file import infer_shapes, read_graph
from backbones.model import Backbone
from runtime.errors import DataError
from runtime.mxnet import mx
from tests.backbones.passes import DATA, act, conv, norm

SIZE = (16, 12)
IMAGES = np.random.default_rng(7).integers(0, 256, (3, 3, *SIZE), dtype=np.uint8)
PIXELS = (DATA - 127.5) * 0.0078125


def convolved(x: Any, name: str) -> Any:
    maps = norm(conv(x, name, no_bias=True), f"{name}_bn", eps=2e-5)
    return act(maps, "prelu", f"{name}_relu")


CONV = convolved(PIXELS, "conv")


def embedded(x: Any) -> Any:
    linear = mx.sym.FullyConnected(x, num_hidden=4, name="pre_fc1")
    return norm(linear, "fc1", fix_gamma=True, eps=2e-5)


def with_norm_aware_pooling() -> Any:
    """The head GNAP: every position is scaled by the mean norm over its own."""
    x = norm(CONV, "bn6f", fix_gamma=True)
    norms = mx.sym.sqrt(mx.sym.sum(x * x, axis=1, keepdims=True))
    factors = mx.sym.broadcast_div(mx.sym.mean(norms), norms)
    scaled = x * mx.sym.tile(factors, reps=(1, 8, 1, 1))
    return embedded(mx.sym.Pooling(scaled, kernel=(7, 7), global_pool=True, pool_type="avg"))


def hard_swish(x: Any) -> Any:
    """As a Gluon block that is called twice writes it: with the same names each time."""
    with mx.name.Prefix("hard_swish_"):
        return x * mx.sym.clip(x + 3, 0, 6) / 6


def mobile_net_v3() -> Any:
    """Hard swish, and channels weighted by what is found over all positions."""
    x = hard_swish(norm(CONV, "a"))
    weights = conv(mx.sym.contrib.AdaptiveAvgPooling2D(x, output_size=1), "se", side=1)
    weights = mx.sym.clip(weights + 3, 0, 6) / 6
    return embedded(hard_swish(norm(mx.sym.broadcast_mul(x, weights), "b")))


def dense() -> Any:
    """Maps beside each other, and a padded path of which a row and column are cut off again."""
    x = mx.sym.Concat(CONV, mx.sym.Dropout(convolved(CONV, "conv2"), p=0.4), dim=1)
    padded = mx.sym.pad(x, mode="constant", constant_value=0, pad_width=(0, 0, 0, 0, 1, 0, 1, 0))
    pooled = mx.sym.Pooling(padded, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg")
    cut = mx.sym.slice(pooled, begin=(None, None, 1, 1), end=(None, None, None, None))
    return embedded(mx.sym.Flatten(cut))


def shuffled() -> Any:
    """Channels exchanged between groups, halves taken apart, and a loss behind the embedding."""
    groups = mx.sym.Reshape(mx.sym.identity(CONV, name="id"), shape=(0, -4, 2, -1, -2))
    x = mx.sym.Reshape(mx.sym.SwapAxis(groups, dim1=1, dim2=2), shape=(0, -3, -2))
    first, second = mx.sym.split(x, num_outputs=2, axis=1)
    x = mx.sym.L2Normalization(first - second, mode="channel")
    x = mx.sym.InstanceNorm(mx.sym.slice_axis(x, axis=2, begin=1, end=None), name="instance")
    return mx.sym.LinearRegressionOutput(embedded(1.0 / (x + 9.0)), name="loss")


def write(folder: Path, symbol: Any) -> Path:
    """Write a checkpoint of a graph with drawn weights; returns its prefix."""
    prefix, rng = folder / "model", np.random.default_rng(3)
    symbol.save(f"{prefix}-symbol.json")
    network = symbol.get_internals()["fc1_output"]
    found, _, auxiliary = network.infer_shape(data=(1, 3, *SIZE))
    names = [f"arg:{name}" for name in network.list_arguments()]
    names += [f"aux:{name}" for name in network.list_auxiliary_states()]
    shapes = zip(names, found + auxiliary)
    arrays = {name: mx.nd.array(rng.uniform(0.1, 1.1, shape)) for name, shape in shapes}
    del arrays["arg:data"]
    mx.nd.save(f"{prefix}-0000.params", arrays)
    return prefix


@pytest.mark.parametrize("graph", [with_norm_aware_pooling, mobile_net_v3, dense, shuffled])
def test_a_form_gives_what_mxnet_gives_and_is_exported_again(tmp_path, graph, monkeypatch) -> None:
    prefix = write(tmp_path, graph())
    backbone = Backbone.load(prefix, image_size=SIZE)
    features = backbone.extract(IMAGES)
    assert features.shape == (3, 4) and np.ptp(features, axis=0).min() > 0
    output = mx.sym.load(f"{prefix}-symbol.json").get_internals()["fc1_output"]
    block = mx.gluon.SymbolBlock(output, mx.sym.var("data", dtype="float32"))
    block.load_parameters(f"{prefix}-0000.params", ignore_extra=True)
    expected = block(mx.nd.array(IMAGES, dtype="float32")).asnumpy()
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)
    backbone.export(tmp_path / "again")
    # The same graph has been tried out.
    monkeypatch.setattr("runtime.untrusted.child.ask", lambda *_: None)
    again = Backbone.load(tmp_path / "again", image_size=SIZE)
    again.parameters["conv_weight"].set_data(mx.nd.zeros(again.parameters["conv_weight"].shape))
    tensors = again.load_pretrained(prefix, 0)
    assert "conv_weight" in tensors.loaded and not tensors.missing and not tensors.left_over
    np.testing.assert_array_equal(again.extract(IMAGES), features)


def test_float16_runs_in_float32_and_names_of_earlier_versions_are_known(tmp_path) -> None:
    """MXNet cannot run float16 on a CPU; until 1.0 it called ``a / b`` and the like otherwise."""
    narrow = mx.sym.Cast(DATA, dtype="float16")
    half = embedded(mx.sym.identity(convolved((narrow - 127.5) * 0.0078125, "conv")))
    found, expected = (
        Backbone.load(write(tmp_path, graph), image_size=SIZE).extract(IMAGES)
        for graph in (half, embedded(CONV))
    )
    np.testing.assert_array_equal(found, expected)
    path = write(tmp_path, with_norm_aware_pooling()).with_name("model-symbol.json")
    shapes = infer_shapes(read_graph(path), SIZE, path)
    graph = json.loads(path.read_text())
    older = {"elemwise_mul": "_Mul", "_minus_scalar": "_MinusScalar", "_mul_scalar": "_MulScalar"}
    for node in graph["nodes"]:
        node["op"] = older.get(node["op"], node["op"])
        node["attr"] = node.pop("attrs", {})
    path.write_text(json.dumps(graph))
    assert infer_shapes(read_graph(path), SIZE, path) == shapes
    # What is not supported is not called damaged.
    larger = mx.sym.UpSampling(PIXELS, scale=2, sample_type="nearest", name="u")
    for symbol, message in (
        (embedded(larger), "'u' is of the operator 'UpSampling', which"),
        (mx.sym.Dropout(PIXELS, name="d"), "no path from 'data' to 'fc1_output'"),
    ):
        symbol.save(str(path))
        with pytest.raises(DataError, match=message) as caught:
            read_graph(path)
        assert str(path) in str(caught.value) and "copy" not in str(caught.value)
