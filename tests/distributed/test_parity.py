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


# Of softmax the gradients are clipped.
LOSSES = ("arcface", "adaface", "curricularface", "softmax", "arcface+teacher")
NETWORKS = ("tiny", "mbf")
IN_PARTS = "arcface:2"


def run(arguments, output, runs, **variables):
    """Do these runs, in the same processes; returns what is left by each."""
    module = "tests.distributed.three_updates"
    command = [*arguments, sys.executable, "-m", module, str(output), *runs]
    finished = subprocess.run(
        command,
        cwd=ROOT,
        env={**clean_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    found = dict(np.load(output))
    return {
        one: {
            name.partition("/")[2]: array
            for name, array in found.items()
            if name.startswith(f"{one}/")
        }
        for one in runs
    }


def launch(launcher, ranks):
    return [str(HOROVODRUN), launcher, "-np", str(ranks), "-H", f"localhost:{ranks}"]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    return run([], tmp_path_factory.mktemp("parity") / "one.npz", (*LOSSES, *NETWORKS))


@pytest.mark.launcher
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("launcher", ["--gloo", "--mpi"])
def test_three_updates_equal_one_process(ranks, launcher, one_process, tmp_path):
    several = run(launch(launcher, ranks), tmp_path / "several.npz", (*LOSSES, IN_PARTS))
    for loss in LOSSES:
        assert_equal(several[loss], one_process[loss], 2e-5)
    assert_equal(several[IN_PARTS], one_process["arcface"], 1e-5)


def assert_equal(found, expected, tolerance):
    assert found.keys() == expected.keys()
    assert found["centers"].shape == (31, 16)
    for name, array in expected.items():
        error = np.abs(found[name] - array).max() / np.abs(array).max()
        assert error <= tolerance, (name, error)


def test_a_batch_in_parts_equals_the_batch(one_process, tmp_path):
    several = run([], tmp_path / "parts.npz", ("arcface:3", "adaface:12", "arcface:2+teacher"))
    assert_equal(several["arcface:3"], one_process["arcface"], 1e-5)
    assert_equal(several["adaface:12"], one_process["adaface"], 1e-5)
    assert_equal(several["arcface:2+teacher"], one_process["arcface+teacher"], 1e-5)


def test_a_teacher_changes_the_updates(one_process):
    taught, alone = one_process["arcface+teacher"], one_process["arcface"]
    assert np.abs(taught["conv1_weight"] - alone["conv1_weight"]).max() > 1e-3


@pytest.mark.launcher
@pytest.mark.parametrize(
    ("launcher", "ranks", "engine"),
    [
        ("--gloo", 2, "ThreadedEnginePerDevice"),
        ("--mpi", 3, "ThreadedEnginePerDevice"),
        # Each operator ends before the next begins, also the collectives.
        ("--gloo", 2, "NaiveEngine"),
    ],
)
def test_synchronized_updates_equal_one_process(launcher, ranks, engine, one_process, tmp_path):
    """The loss, the backbone, its statistics and the centers."""
    runs = NETWORKS[:1] if engine == "NaiveEngine" else NETWORKS
    output = tmp_path / "several.npz"
    several = run(launch(launcher, ranks), output, runs, MXNET_ENGINE_TYPE=engine)
    for network in runs:
        assert several[network].keys() == one_process[network].keys()
        for name, expected in one_process[network].items():
            # Weights are of the order of 1; some shifts are rounding alone.
            error = np.abs(several[network][name] - expected).max() / max(
                np.abs(expected).max(), 1.0
            )
            assert error <= 2e-5, (network, name, error)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_updates_move_everything(loss, one_process):
    """Otherwise the comparison would hold for a program that does nothing."""
    assert len(set(one_process[loss]["losses"].tolist())) == 3
    assert np.abs(one_process[loss]["centers"]).max() > 0.05
