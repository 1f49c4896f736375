"""GSP under the launcher: groups of Horovod ranks among which parameter servers stand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.launcher
def test_two_groups_learn(tmp_path: Path) -> None:
    groups, models = tmp_path / "groups", tmp_path / "models"
    groups.write_text("127.0.0.1 127.0.0.1\n127.0.0.1\n")
    options = ["--dataset", "synthetic", "--image-size", 16, "--num-classes", 4, "--threads", 1]
    options += ["--num-images", 1500, "--batch-size", 32, "--epochs", 3, "--lr", 0.02]
    command = ["-m", "parallel.launch", "-n", 3, "-s", 2, "--groups", groups, "--"]
    command += [sys.executable, "classify.py", *options, "--kv-store", "dist_gsync"]
    finished = subprocess.run(
        [sys.executable, *map(str, [*command, "--models-root", models, "--frequent", 10])],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    records = [json.loads(line) for line in (models / "metrics.jsonl").read_text().splitlines()]
    validations = [record for record in records if record.get("target") == "validation"]
    assert len(validations) == 3 and validations[-1]["accuracy"] > 0.4
    assert validations[-1]["total"] == 300
    last = [record for record in records if "lr" in record][-1]
    # Each of the workers reads 500 pictures: 15 updates of each group in an epoch.
    assert last["update"] == 45
    assert last["images_per_second/group_0"] > 0 and last["images_per_second/group_1"] > 0
    # Whole epochs of both groups are behind it, by the count of the weights' updates.
    assert last["lr"] < 2 * 0.02 * 0.1 and last["staleness"] >= 1
