"""The memory that cuDNN may use for a convolution on a device."""

from __future__ import annotations

import json

import numpy as np
import pytest

import backbones
from backbones.classifiers import Normalization
from backbones.classifiers.classifier import Classifier
from backbones.graph import gpu
from backbones.graph.recompute import cut
from backbones.model import Backbone
from backbones.options import BackboneOptions, ClassifierOptions
from runtime.mxnet import mx

HOST, DEVICE = mx.cpu(), mx.cpu(1)


def workspaces(symbol) -> set:
    nodes = json.loads(symbol.tojson())["nodes"]
    return {node["attrs"].get("workspace") for node in nodes if node["op"] == "Convolution"}


def of_block(block) -> set:
    return workspaces(block._cached_graph[1])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nothing_else_of_a_graph_changes(dtype: str) -> None:
    plain = backbones.build("mbf", dtype=dtype)
    limited = gpu.rewrite(plain)
    assert (workspaces(plain), workspaces(limited)) == ({None}, {"256"})
    nodes = json.loads(limited.tojson())
    for node in nodes["nodes"]:
        if node["op"] == "Convolution":
            del node["attrs"]["workspace"]
    assert nodes == json.loads(plain.tojson())


@pytest.mark.parametrize(("ctx", "expected"), [(HOST, {None}), (DEVICE, {"256"})])
def test_what_runs_on_a_device_has_the_limit(ctx, expected: set, tmp_path, monkeypatch) -> None:
    recomputed = []
    monkeypatch.setattr("backbones.model.cut", lambda *a: recomputed.append(a[0]) or cut(*a))
    options = BackboneOptions(network="tiny", embedding_size=8, recompute=True)
    backbone = Backbone.create(options, image_size=(32, 32), ctx=ctx)
    assert of_block(backbone._block) == workspaces(recomputed[0]) == expected
    backbone.export(tmp_path / "tiny")
    assert workspaces(mx.sym.load(str(tmp_path / "tiny-symbol.json"))) == {None}
    assert of_block(Backbone.load(tmp_path / "tiny", image_size=(32, 32), ctx=ctx)._block) == (
        expected
    )
    classifier = Classifier.create(
        ClassifierOptions(model="LeNet"), classes=5, image_shape=(1, 16, 16),
        normalization=Normalization((0.5,), (0.25,)), ctx=ctx,
    )  # fmt: skip
    assert of_block(classifier._block) == expected


def test_a_device_computes_the_same_with_the_limit() -> None:
    options = BackboneOptions(network="tiny", embedding_size=8)
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32), np.uint8)
    backbone = Backbone.create(options, image_size=(32, 32), seed=1, ctx=DEVICE)
    plain = backbones.build("tiny", embedding_size=8)
    values = {name: value.data() for name, value in backbone.parameters.items()}
    statistics = {name: values.pop(name) for name in plain.list_auxiliary_states()}
    values["data"] = mx.nd.array(images, ctx=DEVICE)
    bound = plain.bind(DEVICE, values, aux_states=statistics)
    np.testing.assert_array_equal(backbone.extract(images), bound.forward()[0].asnumpy())
