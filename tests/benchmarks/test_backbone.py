"""The benchmark of backbones measures equal networks, and its report says what was measured."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import backbones
from backbones.model import Backbone
from backbones.options import BackboneOptions
from benchmarks import backbone as backbone_benchmark
from benchmarks import worker
from benchmarks.backbone import BackboneMeasurement
from benchmarks.backbone_case import BackboneCase
from benchmarks.toolkit_backbone import PlainBackbone, RecomputingBackbone, ToolkitBackbone
from runtime.environment import bfloat16_unit
from runtime.errors import ConfigError
from runtime.mxnet import mx
from tests.support.launch import clean_environment
from tests.support.near_worker import NearWorker

ROOT = Path(__file__).resolve().parents[2]
MEBIBYTE = 2**20
HAS_PYTORCH = worker.pytorch_python() is not None


def test_images_and_gradient_are_the_same_every_time() -> None:
    case = BackboneCase("tiny", 3)
    assert str(case) == "tiny, B=3, 112x112, float32"
    assert case.images().shape == (3, 3, 112, 112)
    assert np.array_equal(case.images(), case.images())
    assert case.gradient().shape == (3, 512)
    # As long as that of a mean over the batch: 1 / B for every image.
    assert np.linalg.norm(case.gradient(), axis=1) == pytest.approx(1 / 3, rel=0.2)


def test_all_forms_of_the_backbone_take_the_same_step() -> None:
    sizes = dataclasses.asdict(BackboneCase("tiny", 2))
    weights = []
    for subject in (ToolkitBackbone, PlainBackbone, RecomputingBackbone):
        trained = subject(**sizes)
        before = trained.backbone.parameters["conv0_weight"].data().asnumpy()
        trained.step()
        weights.append(trained.backbone.parameters["conv0_weight"].data().asnumpy())
        assert np.abs(weights[-1] - before).max() > 0
    for other in weights[1:]:
        assert np.abs(other - weights[0]).max() < 1e-6


@pytest.mark.skipif(not HAS_PYTORCH, reason="PyTorch is not installed")
@pytest.mark.parametrize("name", ["r18", "mbf"])
def test_pytorch_has_the_same_layers(name: str, tmp_path: Path) -> None:
    """Our weights, in the order of our graph, give our features."""
    ours = Backbone.create(BackboneOptions(network=name), seed=2)
    order = [key for key in backbones.build(name).list_arguments() if key != "data"]
    weights = {
        f"weight{place}": ours.parameters[key].data().asnumpy() for place, key in enumerate(order)
    }
    images = BackboneCase(name, 2).images()
    exchange = tmp_path / "weights.npz"
    np.savez(exchange, images=images, **weights)
    # A process of its own: the two libraries do not live in one.
    subprocess.run(
        [str(worker.pytorch_python()), "tests/benchmarks/pytorch_features.py", name, exchange],
        cwd=ROOT,
        env={**clean_environment(), "PYTHONPATH": str(ROOT)},
        check=True,
    )
    features = np.load(f"{exchange}.features.npy")
    with mx.autograd.train_mode():
        expected = ours(mx.nd.array(images)).asnumpy()
    assert np.abs(features - expected).max() < 1e-2


def test_variants_are_those_that_can_run() -> None:
    narrow = bfloat16_unit() is not None
    own = ["ours", "plain", "recompute", *(["bfloat16"] if narrow else [])]
    assert backbone_benchmark.variants("tiny") == own
    pytorch = ["pytorch", *(["pytorch bfloat16"] if narrow else [])] if HAS_PYTORCH else []
    assert backbone_benchmark.variants("r50") == own + pytorch


def test_table_of_made_up_measurements() -> None:
    measured = {
        "ours": BackboneMeasurement([0.4, 0.5, 0.6], 3 * MEBIBYTE),
        "pytorch": BackboneMeasurement([1.0, 1.0, 1.0], None),
    }
    lines = backbone_benchmark.table(BackboneCase("r18", 10), measured).splitlines()[2:]
    ours, pytorch = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert ours == ["ours", "500", "400 … 600", "20.00", "1.00", "2.00", "3"]
    assert pytorch == ["pytorch", "1000", "1000 … 1000", "10.00", "0.50", "1.00", ""]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--network", "r97"], "r97"),
        (["--batch", "0"], "--batch: '0' is not a positive integer"),
        (["--variants", "ours,plane"], "--variants 'plane' is unknown"),
    ],
)
def test_wrong_options_are_explained(words, complaint) -> None:
    with pytest.raises(ConfigError, match=complaint):
        backbone_benchmark.main(words)


def test_the_program_reports_and_writes_rows(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(backbone_benchmark, "Worker", NearWorker)
    output = tmp_path / "rows.json"
    backbone_benchmark.main(
        "--network tiny --batch 2 --threads 1 --rounds 1 --variants ours,plain,recompute".split()
        + ["--json", str(output)]
    )
    report = capsys.readouterr().out
    title = "tiny, B=2, 112x112, float32, threads=1"
    assert f"## {title}\n" in report
    rows = json.loads(output.read_text())
    assert [row["name"] for row in rows] == ["ours", "plain", "recompute"]
    assert all(row["case"] == title and row["value"] > 0 for row in rows)
