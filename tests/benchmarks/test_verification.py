"""The benchmark of embeddings measures what is named, and leaves the layers alone for the floor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backbones.model import Backbone
from backbones.options import BackboneOptions
from benchmarks import toolkit_inference, verification
from runtime.environment import bfloat16_unit
from runtime.errors import ConfigError


@pytest.mark.measurements
def test_a_small_measurement(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--network", "tiny", "--batch", "2", "--rounds", "1", "--threads", "1"]
    verification.main([*words, "--json", str(tmp_path / "rows.json")])
    line = next(line for line in capsys.readouterr().out.splitlines() if "| tiny" in line)
    names = ["graph of training", "graph of inference", "layers alone", "lanes"]
    names += ["lanes, bfloat16"] if bfloat16_unit() else []
    # Each, the case and two ratios, between bars.
    assert len(line.split("|")) == len(names) + 5
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["name"] for row in rows] == names
    assert all(row["value"] > 0 and row["unit"] == "images/s" for row in rows)


def test_a_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Backbone.create(BackboneOptions(network="tiny", embedding_size=8)).export(tmp_path / "model", 3)
    words = ["--network", "", "--model", f"{tmp_path}/model,3", "--batch", "2"]
    verification.main([*words, "--rounds", "1", "--threads", "1"])
    assert f"| {tmp_path}/model,3, B=2" in capsys.readouterr().out


def test_an_unknown_network() -> None:
    with pytest.raises(ConfigError, match="mbf"):
        verification.main(["--network", "mbff"])


def test_layers_alone() -> None:
    graph = Backbone.create(BackboneOptions(network="mbf", embedding_size=8)).graph
    found = toolkit_inference._layers_of(graph).tojson()
    for name in ("Convolution", "FullyConnected", "elemwise_add"):
        assert f'"{name}"' in found
    for name in ("BatchNorm", "LeakyReLU"):
        assert f'"{name}"' in graph.tojson() and f'"{name}"' not in found
