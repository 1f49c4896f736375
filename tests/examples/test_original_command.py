"""Grouping-SGD's own commands, with our entry point in the place of theirs, on its form of CIFAR.

What its scripts type (gsp_cifar10_inception_small.sh, gsp_cifar10_resnet20.sh), on this machine:
``--gpus 0,1`` alone has no counterpart, and is answered. ``make grouping`` has the long form, which
must learn.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import cifar_records
from tests.support.launch import ROOT, finish

HERE = "127.0.0.1"
LAUNCH = "-n 4 -s 2 -i lo --launcher local -H hosts --".split()
PROGRAM = ["python", str(ROOT / "classify.py")]
COMMON = "--data-dir cifar10/ --lr-factor 0.94 --kv-store dist_gsync --data-allocator 1".split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the original, under its names: two groups, the second with less of the data."""
    (tmp_path / "hosts").write_text(f"{HERE}\n" * 4)
    (tmp_path / "groups").write_text(f"{HERE} {HERE}\n" * 2)
    (tmp_path / "data_sharding").write_text("0 0.3\n0.3 0.6\n0.6 0.8\n0.8 1\n")
    return tmp_path


def run(folder: Path, *options: str, seconds: int = 280) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "parallel.launch", *LAUNCH, *PROGRAM, *COMMON, *options]
    return finish(*line, folder=folder, seconds=seconds, PYTHONPATH=str(ROOT), PS_VERBOSE="1")


def validations(folder: Path, models: str) -> list[dict]:
    lines = (folder / "models" / models / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [record for record in records if record.get("target") == "validation"]


def test_it_runs(folder: Path) -> None:
    cifar_records.write(folder / "cifar10", 200, 40)
    models = "cifar10_grouping_resnet-resnet20"
    options = "--dataset cifar10_grouping_resnet --network resnet20 --lr 0.05"
    short = "--batch-size 5 --num-epoch 1 --num-examples 200"
    result = run(folder, *options.split(), *short.split())
    (found,) = validations(folder, models)
    assert found["total"] == 40
    config = json.loads((folder / "models" / models / "config.json").read_text())
    assert (config["model"], config["epochs"], config["lr_factor"]) == ("resnet20", 1, 0.94)
    assert config["no_lr_scaling"] and config["image_size"] == 32
    for name in ("groups", "data_sharding"):
        said = f"launch: --{name.replace('_', '-')} {name}, which is in this folder"
        assert said in result.stderr


@pytest.mark.grouping
@pytest.mark.timeout(3000)
def test_it_learns(folder: Path) -> None:
    cifar_records.write(folder / "cifar10", 2000, 500)
    options = "--dataset cifar10_grouping --network resnet20 --batch-size 10 --lr 0.1".split()
    run(folder, *options, "--num-epoch", "2", "--num-examples", "2000", seconds=2900)
    accuracies = [one["accuracy"] for one in validations(folder, "cifar10_grouping-resnet20")]
    assert len(accuracies) == 2 and accuracies[-1] > 0.8, accuracies
