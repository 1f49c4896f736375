"""The graph of a device: a limit for cuDNN's convolutions, and dropout that follows the seed."""

from __future__ import annotations

from typing import Any

import pytest

import backbones
from backbones.graph import gpu
from backbones.graph.nodes import to_json
from backbones.graph.recompute import cut
from backbones.model import Backbone
from runtime.mxnet import mx
from tests.backbones.passes import classifier, create


def workspaces(network: Any) -> set[Any]:
    """Of the convolutions of a graph, or of a network's graph that runs."""
    symbol = network._block._cached_graph[1] if hasattr(network, "_block") else network
    nodes = to_json(symbol)["nodes"]
    return {node["attrs"].get("workspace") for node in nodes if node["op"] == "Convolution"}


@pytest.mark.parametrize(
    ("ctx", "expected"), [(mx.cpu(), {None}), (mx.cpu(1), {str(gpu.WORKSPACE)})]
)
def test_what_runs_on_a_device_has_the_limit(ctx, expected, tmp_path, monkeypatch) -> None:
    recomputed: list[Any] = []
    monkeypatch.setattr("backbones.model.cut", lambda *a: recomputed.append(a[0]) or cut(*a))
    backbone = create(side=32, ctx=ctx, recompute=True)
    backbone.export(tmp_path / "tiny")
    assert workspaces(mx.sym.load(str(tmp_path / "tiny-symbol.json"))) == {None}
    loaded = Backbone.load(tmp_path / "tiny", image_size=(32, 32), ctx=ctx)
    lenet = classifier("LeNet", (1, 16, 16), ctx=ctx)
    for network in (backbone, recomputed[0], loaded, lenet):
        assert workspaces(network) == expected


def test_nothing_else_of_a_graph_changes() -> None:
    plain = backbones.build("mbf", dtype="float16", output="E")
    nodes, expected = to_json(gpu.rewrite(plain)), to_json(plain)
    for node in expected["nodes"]:
        if node["op"] == "Convolution":
            node["attrs"]["workspace"] = "256"
        elif node["op"] == "Dropout":
            node["attrs"]["cudnn_off"] = "True"
    assert nodes == expected
