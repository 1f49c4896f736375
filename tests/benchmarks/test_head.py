"""The benchmark's heads compute the same, and its report says what was measured."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks import head, worker
from benchmarks.head import Comparison, HeadMeasurement, HeadSetup
from benchmarks.head_case import SEED, HeadCase
from benchmarks.textbook_head import TextbookHead
from benchmarks.toolkit_head import ToolkitHead
from partial_fc.shard import Sampler, Shard
from runtime.environment import Bfloat16Unit
from runtime.errors import ConfigError
from tests.support.bfloat16 import needs_bfloat16
from tests.support.launch import clean_environment
from tests.support.measurement import measure
from tests.support.near_worker import NearWorker

ROOT = Path(__file__).resolve().parents[2]
UPDATES = 3
needs_pytorch = pytest.mark.skipif(
    worker.pytorch_python() is None, reason="PyTorch is not installed"
)


@pytest.fixture(params=[1.0, 0.4])
def case(request):
    return HeadCase(classes=61, ratio=request.param, batch=8, embedding=24)


def updates_of_ours(case):
    ours = ToolkitHead(**dataclasses.asdict(case))
    steps = [ours.train() for _ in range(UPDATES)]
    losses = [step.loss.asscalar() for step in steps]
    gradients = [step.gradient.asnumpy() for step in steps]
    return losses, gradients, ours.head.rows.export()["centers"]


def assert_same(actual, expected):
    for one, other in zip(actual, expected):
        one, other = np.asarray(one), np.asarray(other)
        assert np.abs(one - other).max() <= 2e-5 * np.abs(other).max()


def test_the_textbook_head_computes_what_the_toolkits_computes(case) -> None:
    textbook = TextbookHead(**dataclasses.asdict(case))
    sampler = Sampler(Shard(0, 1, case.classes), case.ratio, SEED)
    losses, gradients = [], []
    for update in range(1, UPDATES + 1):
        loss, gradient = textbook.train(sampler.sample(case.labels(), update).rows)
        losses.append(loss.asscalar())
        gradients.append(gradient.asnumpy())
    assert_same((losses, gradients, textbook.centers.asnumpy()), updates_of_ours(case))
    assert losses[-1] < losses[0]


@needs_pytorch
def test_the_pytorch_head_computes_what_the_toolkits_computes(case, tmp_path) -> None:
    script = ROOT / "tests/benchmarks/pytorch_updates.py"
    output = tmp_path / "updates.npz"
    # A process of its own: two libraries with threads of their own do not belong in one.
    subprocess.run(
        [
            str(worker.pytorch_python()),
            script,
            json.dumps(dataclasses.asdict(case)),
            str(UPDATES),
            output,
        ],
        env={**clean_environment(), "PYTHONPATH": str(ROOT)},
        check=True,
    )
    with np.load(output) as arrays:
        theirs = [arrays[name] for name in ("losses", "gradients", "centers")]
    assert_same(theirs, updates_of_ours(case))


def test_a_sample_holds_all_positives_and_no_row_twice() -> None:
    """With more classes in the batch than the ratio allows, and with fewer."""
    for ratio in (0.01, 0.5):
        case = HeadCase(classes=200, ratio=ratio, batch=20, embedding=4)
        rows = TextbookHead(**dataclasses.asdict(case))._sample()
        assert rows.size == case.rows == np.unique(rows).size
        assert np.isin(case.labels(), rows).all()


def test_bound_of_the_memory_by_hand() -> None:
    case = HeadCase(classes=1000, ratio=0.1, batch=4, embedding=8)
    assert case.rows == 100
    assert case.memory_bound == pytest.approx(1.3 * (1600 + 400 + 128) * 4)


def test_table_of_made_up_measurements() -> None:
    case, large = HeadCase(1000, 0.5), HeadCase(5000, 0.1)
    seconds = {"ours": 0.2, "textbook": 0.8, "pytorch": 0.5, "products": 0.1}
    measured = {
        HeadSetup(name, case): HeadMeasurement([value, 9.0, value / 2], 3 * 2**20)
        for name, value in seconds.items()
    }
    measured[HeadSetup("ours", large)] = HeadMeasurement([0.22, 9.9, 0.11], None)
    lines = head.table(Comparison(case, (large,)), measured).splitlines()
    ours, textbook, _, products, beyond = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]
    )
    assert ours[:8] == ["ours", "200.0", "100.0 … 9000.0", "1.00", "0.25", "0.40", "2.00", "50%"]
    assert ours[9:] == ["3", "6"]
    assert textbook[3] == "4.00"
    assert products[9:] == ["", ""]
    assert beyond[0] == "ours: 5,000 classes, ratio 0.1, B=256, D=512, float32"
    assert beyond[3] == "1.10"


def test_pytorch_is_left_out_if_it_is_not_installed(monkeypatch) -> None:
    monkeypatch.setattr(worker, "pytorch_python", lambda: None)
    setups = Comparison(HeadCase(10, 1.0)).setups()
    assert [setup.variant for setup in setups] == ["ours", "textbook", "products"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--classes", "10", "--ratio", "1.5"], "--ratio: '1.5' is not above 0"),
        (["--ratio", "0.5"], "--classes"),
        (["--classes", "10", "--dtype", "float46"], "float46"),
        (["--classes", "10", "--dtype", "bfloat16"], "neither AVX512_BF16 nor AMX"),
    ],
)
def test_wrong_options_are_explained(words, complaint, monkeypatch) -> None:
    monkeypatch.setattr(head, "bfloat16_unit", lambda: None)
    with pytest.raises(ConfigError, match=complaint):
        head.main(words)


@needs_bfloat16
def test_bfloat16_is_measured_beside_our_float32(monkeypatch) -> None:
    monkeypatch.setattr(head, "bfloat16_unit", lambda: Bfloat16Unit.TILES)
    options = head._parse(["--classes", "300", "--batch", "8", "--dtype", "bfloat16"])
    (comparison,) = head._comparisons(options)
    setups = comparison.setups()
    assert [(setup.variant, setup.case.dtype) for setup in setups] == [
        ("ours", "bfloat16"),
        ("products", "bfloat16"),
        ("ours", "float32"),
    ]
    # The emulation of a processor without tiles runs the same code, and so does this process.
    monkeypatch.setattr(head, "Worker", NearWorker)
    measured = head.compare(comparison, threads=1, rounds=1)
    assert len(head.table(comparison, measured).splitlines()) == 2 + len(setups)


def test_a_small_run_writes_report_and_rows(tmp_path) -> None:
    options = "--classes 300 --ratio 0.5 --batch 8 --threads 1 --rounds 1"
    report, rows = measure("head", options, tmp_path)
    title = "300 classes, ratio 0.5, B=8, D=512, float32, threads=1"
    assert f"## {title}\n" in report
    names = {row["name"] for row in rows}
    assert {"ours", "textbook", "products"} <= names <= set(head.VARIANTS)
    assert all(row["case"] == title and row["unit"] == "ms" and row["value"] > 0 for row in rows)
