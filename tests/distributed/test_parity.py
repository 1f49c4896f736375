"""Several ranks under a real launcher leave what one process with the whole batch leaves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from parallel.world import LoneWorld
from tests.distributed import three_updates
from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[2]
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
# Of softmax the gradients are clipped.
LOSSES = ("arcface", "adaface", "curricularface", "softmax", "arcface+teacher")
# A batch in parts, beside the batch.
IN_PARTS = {
    "arcface:3": "arcface", "adaface:12": "adaface", "arcface:2+teacher": "arcface+teacher"
}  # fmt: skip
NETWORKS = ("tiny", "mbf")

Arrays = dict[str, np.ndarray]
Found = dict[str, Arrays]


def run(launch: list[str], output: Path, runs: Sequence[str], **variables: str) -> Found:
    """Do these runs, in the same processes; returns what is left by each."""
    module = [sys.executable, "-m", "tests.distributed.three_updates", str(output), *runs]
    finished = subprocess.run(
        [*launch, *module], cwd=ROOT, env={**clean_environment(), **variables},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    found: Found = {one: {} for one in runs}
    for name, array in np.load(output).items():
        one, _, part = name.partition("/")
        found[one][part] = array
    return found


def launch(launcher: str, ranks: int) -> list[str]:
    return [str(HOROVODRUN), launcher, "-np", str(ranks), "-H", f"localhost:{ranks}"]


def assert_equal(found: Arrays, expected: Arrays, tolerance: float, least: float = 0) -> None:
    """Relative to the largest number of an array, which counts as ``least`` where it is smaller."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        error = np.abs(found[name] - array).max() / max(np.abs(array).max(), least)
        assert error <= tolerance, (name, error)


@pytest.fixture(scope="module")
def one_process() -> Found:
    return {one: three_updates.train(LoneWorld(), one) for one in (*LOSSES, *IN_PARTS)}


@pytest.mark.launcher
@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        ("--gloo", 2),
        pytest.param("--mpi", 3, marks=pytest.mark.thorough),
    ],
)
def test_three_updates_equal_one_process(
    launcher: str, ranks: int, one_process: Found, tmp_path: Path
) -> None:
    several = run(launch(launcher, ranks), tmp_path / "several.npz", (*LOSSES, "arcface:2"))
    for name, found in several.items():
        assert_equal(found, one_process[name.replace(":2", "")], 2e-5)


@pytest.mark.parametrize("parts", IN_PARTS)
def test_a_batch_in_parts_equals_the_batch(parts: str, one_process: Found) -> None:
    assert_equal(one_process[parts], one_process[IN_PARTS[parts]], 1e-5)


def test_the_updates_move_everything(one_process: Found) -> None:
    """Otherwise the comparison would hold for a program that does nothing."""
    for loss in LOSSES:
        assert len(set(one_process[loss]["losses"].tolist())) == 3
        centers = one_process[loss]["centers"]
        assert centers.shape == (31, 16) and np.abs(centers).max() > 0.05
    taught, alone = one_process["arcface+teacher"], one_process["arcface"]
    assert np.abs(taught["conv1_weight"] - alone["conv1_weight"]).max() > 1e-3


@pytest.fixture(scope="module")
def networks() -> Found:
    return {one: three_updates.train(LoneWorld(), one) for one in NETWORKS}


@pytest.mark.thorough
@pytest.mark.launcher
@pytest.mark.parametrize(
    ("launcher", "ranks", "engine"),
    [
        ("--mpi", 3, "ThreadedEnginePerDevice"),
        # Each operator ends before the next begins, also the collectives.
        ("--gloo", 2, "NaiveEngine"),
    ],
)
def test_synchronized_updates_equal_one_process(
    launcher: str, ranks: int, engine: str, networks: Found, tmp_path: Path
) -> None:
    """The loss, the backbone, its statistics and the centers."""
    runs = NETWORKS[:1] if engine == "NaiveEngine" else NETWORKS
    output = tmp_path / "several.npz"
    several = run(launch(launcher, ranks), output, runs, MXNET_ENGINE_TYPE=engine)
    for network in runs:
        # Weights are of the order of 1; some shifts are rounding alone.
        assert_equal(several[network], networks[network], 2e-5, least=1.0)
