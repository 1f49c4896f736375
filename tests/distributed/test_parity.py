"""Several ranks under a real launcher leave what one process with the whole batch leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[2]
HOROVODRUN = Path(sys.executable).with_name("horovodrun")


def run(arguments, output, loss="arcface"):
    module = "tests.distributed.three_updates"
    command = [*arguments, sys.executable, "-m", module, str(output), loss]
    finished = subprocess.run(
        command,
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return dict(np.load(output))


def launch(launcher, ranks):
    return [str(HOROVODRUN), launcher, "-np", str(ranks), "-H", f"localhost:{ranks}"]


def assert_equal(several, one_process):
    assert several.keys() == one_process.keys()
    assert several["centers"].shape == (31, 16)
    for name, expected in one_process.items():
        error = np.abs(several[name] - expected).max() / np.abs(expected).max()
        assert error <= 2e-5, (name, error)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    return run([], tmp_path_factory.mktemp("parity") / "one.npz")


@pytest.mark.launcher
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("launcher", ["--gloo", "--mpi"])
def test_three_updates_equal_one_process(ranks, launcher, one_process, tmp_path):
    several = run(launch(launcher, ranks), tmp_path / "several.npz")
    assert_equal(several, one_process)


@pytest.mark.launcher
@pytest.mark.parametrize("loss", ["adaface", "curricularface"])
def test_adaptive_losses_equal_one_process(loss, tmp_path):
    one = run([], tmp_path / "one.npz", loss)
    assert_equal(run(launch("--gloo", 2), tmp_path / "several.npz", loss), one)


def test_the_updates_move_everything(one_process):
    """Otherwise the comparison would hold for a program that does nothing."""
    assert len(set(one_process["losses"].tolist())) == 3
    assert np.abs(one_process["centers"]).max() > 0.05
