"""The graph of a device: a limit for cuDNN's convolutions, and dropout that follows the seed."""

from __future__ import annotations

from typing import Any

import pytest

import backbones
from backbones.classifiers import Normalization
from backbones.classifiers.classifier import Classifier
from backbones.graph import gpu
from backbones.graph.nodes import to_json
from backbones.graph.recompute import cut
from backbones.model import Backbone
from backbones.options import BackboneOptions, ClassifierOptions
from runtime.mxnet import mx

HOST, DEVICE = mx.cpu(), mx.cpu(1)


def workspaces(network: Any) -> set[Any]:
    """Of the convolutions of a graph, or of a network's graph that runs."""
    symbol = network._block._cached_graph[1] if hasattr(network, "_block") else network
    nodes = to_json(symbol)["nodes"]
    return {node["attrs"].get("workspace") for node in nodes if node["op"] == "Convolution"}


def test_nothing_else_of_a_graph_changes() -> None:
    plain = backbones.build("mbf", dtype="float16", output="E")
    nodes, expected = to_json(gpu.rewrite(plain)), to_json(plain)
    for node in expected["nodes"]:
        if node["op"] == "Convolution":
            node["attrs"]["workspace"] = "256"
        elif node["op"] == "Dropout":
            node["attrs"]["cudnn_off"] = "True"
    assert nodes == expected


@pytest.mark.parametrize(("ctx", "expected"), [(HOST, {None}), (DEVICE, {"256"})])
def test_what_runs_on_a_device_has_the_limit(ctx, expected, tmp_path, monkeypatch) -> None:
    recomputed: list[Any] = []
    monkeypatch.setattr("backbones.model.cut", lambda *a: recomputed.append(a[0]) or cut(*a))
    options = BackboneOptions(network="tiny", embedding_size=8, recompute=True)
    backbone = Backbone.create(options, image_size=(32, 32), ctx=ctx)
    assert workspaces(backbone) == workspaces(recomputed[0]) == expected
    backbone.export(tmp_path / "tiny")
    assert workspaces(mx.sym.load(str(tmp_path / "tiny-symbol.json"))) == {None}
    loaded = Backbone.load(tmp_path / "tiny", image_size=(32, 32), ctx=ctx)
    assert workspaces(loaded) == expected
    classifier = Classifier.create(
        ClassifierOptions(model="LeNet"), classes=5, image_shape=(1, 16, 16),
        normalization=Normalization((0.5,), (0.25,)), ctx=ctx,
    )  # fmt: skip
    assert workspaces(classifier) == expected
