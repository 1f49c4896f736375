from __future__ import annotations

import json

import numpy as np

from backbones import layers
from runtime.mxnet import mx


def run(symbol, **arrays):
    inputs = {name: mx.nd.array(np.asarray(value, np.float32)) for name, value in arrays.items()}
    return symbol.eval(ctx=mx.cpu(), **inputs)[0].asnumpy()


def test_pixels_are_normalized_in_the_graph() -> None:
    result = run(layers.pixels("float32"), data=[0, 127.5, 255])
    np.testing.assert_array_equal(result, [-127.5 / 128, 0, 127.5 / 128])


def test_first_nodes_tell_the_insightface_package_that_pixels_are_normalized() -> None:
    with mx.name.NameManager():
        graph = json.loads(layers.pixels("float32").tojson())
    assert [node["name"] for node in graph["nodes"]] == ["data", "_minusscalar0", "_mulscalar0"]


def test_prelu_scales_the_negative_part_per_channel() -> None:
    symbol = layers.prelu(mx.sym.var("x"), "relu0")
    assert symbol.list_arguments() == ["x", "relu0_gamma"]
    result = run(symbol, x=[[[[-2.0, 4.0]], [[-2.0, 4.0]]]], relu0_gamma=[0.25, 0.5])
    np.testing.assert_array_equal(result, [[[[-0.5, 4.0]], [[-1.0, 4.0]]]])


def test_padding_keeps_the_size() -> None:
    for kernel in (1, 3, 7):
        symbol = layers.convolution(mx.sym.var("x"), "conv0", 4, kernel=kernel)
        _, outputs, _ = symbol.infer_shape(x=(1, 3, 10, 10))
        assert outputs == [(1, 4, 10, 10)]


def test_convolution_has_no_bias_and_knows_groups() -> None:
    symbol = layers.convolution(mx.sym.var("x"), "conv0", 6, kernel=3, groups=6, stride=2)
    shapes, outputs, _ = symbol.infer_shape(x=(1, 6, 8, 8))
    assert dict(zip(symbol.list_arguments(), shapes))["conv0_weight"] == (6, 1, 3, 3)
    assert symbol.list_arguments() == ["x", "conv0_weight"]
    assert outputs == [(1, 6, 4, 4)]


def test_batch_norm_settings() -> None:
    free = layers.batch_norm(mx.sym.var("x"), "bn0").attr_dict()["bn0"]
    fixed = layers.batch_norm(mx.sym.var("x"), "fc1", fixed_gamma=True).attr_dict()["fc1"]
    assert (float(free["eps"]), float(free["momentum"])) == (2e-5, 0.9)
    assert (free["fix_gamma"], fixed["fix_gamma"]) == ("False", "True")
