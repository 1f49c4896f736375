"""GSP under the launcher: groups of Horovod ranks among which parameter servers stand."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[3]


def run(folder: Path, groups: str, *program: str, workers: int, options: list) -> tuple[str, list]:
    """What a job on four classes prints, and its records."""
    (folder / "groups").write_text(groups)
    command = ["-m", "parallel.launch", "-n", workers, "-s", 1, "--groups", folder / "groups", "--"]
    command += [sys.executable, *program, "--dataset", "synthetic", "--image-size", 16]
    command += ["--num-classes", 4, "--threads", 1, "--batch-size", 32, *options]
    command += ["--kv-store", "dist_gsync", "--models-root", folder / "models"]
    finished = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    lines = (folder / "models" / "metrics.jsonl").read_text().splitlines()
    return finished.stdout, [json.loads(line) for line in lines]


@pytest.mark.launcher
def test_two_groups_train(tmp_path: Path) -> None:
    groups = "127.0.0.1 127.0.0.1\n127.0.0.1\n"
    options = ["--num-images", 300, "--lr", 0.005, "--frequent", 1, "--epochs", 2]
    _, records = run(tmp_path, groups, "classify.py", workers=3, options=options)
    validations = [record for record in records if record.get("target") == "validation"]
    assert [record["total"] for record in validations] == [60, 60]
    last = [record for record in records if "lr" in record][-1]
    # Each of the workers reads 100 images: 3 updates of each group in an epoch.
    assert last["update"] == 6
    assert last["images_per_second/group_0"] > 0 and last["images_per_second/group_1"] > 0
    # Half of the run or more is over, by the count of the weights' updates.
    assert last["lr"] < 0.7 * 2 * 0.005 and last["staleness"] >= 1


@pytest.mark.thorough
@pytest.mark.launcher
@pytest.mark.timeout(300)
def test_new_groups_while_training(tmp_path: Path) -> None:
    """Workers 1 and 3 are slow, each in the group of a fast one; later all are alike."""
    groups = "127.0.0.1 127.0.0.1\n127.0.0.1 127.0.0.1\n"
    program = ["-m", "tests.support.made_up_speeds", "100,25,100,25/90,90,90,90"]
    options = ["--num-images", 1600, "--lr", 0.005, "--frequent", 4, "--epochs", 3]
    options += ["--rebalance", 1]
    said, records = run(tmp_path, groups, *program, workers=4, options=options)
    lines = ["100 25 100 25: groups 0,2 1,3, shares 0.400 0.100 0.400 0.100"]
    lines += ["90 90 90 90: groups 0,1,2,3, shares 0.250 0.250 0.250 0.250"]
    assert [said.count(line) for line in lines] == [1, 1], said
    reports = [record for record in records if "lr" in record]
    # Twelve batches in a quarter of the images, twenty in two fifths of them.
    ends = [12, 12 + 20, 12 + 20 + 12]
    assert [record["update"] for record in reports] == list(range(4, ends[-1] + 1, 4))
    validations = [record for record in records if record.get("target") == "validation"]
    assert [record["update"] for record in validations] == ends
    assert [record["epoch"] for record in validations] == [1, 2, 3]
    assert [record["total"] for record in validations] == [320] * 3
    # Of four classes: most runs have more than 0.7 after three epochs, a rare one 0.66.
    assert validations[-1]["accuracy"] > 0.45
    rates = [sum(name.startswith("images_per_second/") for name in record) for record in reports]
    assert rates == [2] * 3 + [2] * 5 + [1] * 3
    # A group alone; and its updates are counted from the epochs that are over.
    assert reports[-1]["staleness"] == reports[-1]["largest_staleness"] == 1
    # The last of the 36 updates that three such epochs would have.
    peak = 0.005 * 4
    assert reports[-1]["lr"] == pytest.approx(peak * 0.5 * (1 + math.cos(math.pi * 35 / 36)))
