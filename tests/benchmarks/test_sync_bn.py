"""The benchmark of ``--sync-bn`` on two small ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.launcher
@pytest.mark.measurements
def test_a_small_run_writes_a_report() -> None:
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    module = [sys.executable, "-m", "benchmarks.sync_bn", "tiny", "--batch", "2", "--rounds", "1"]
    done = subprocess.run(
        [horovodrun, "--gloo", "-np", "2", *module],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "## tiny, B=2, 112x112, float32, ranks=2" in done.stdout
    (row,) = re.findall(r"\| --sync-bn \| (.*) \|", done.stdout)
    milliseconds, _, ratio = row.split(" | ")
    assert float(milliseconds) > 0 and float(ratio) > 0
