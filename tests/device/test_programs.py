"""Runs of the programs on a device: verification, checkpoints, and the model that is left."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import classify
import train
from data.drawn import face_set
from runtime import devices
from runtime.untrusted.parameter_file import read_parameters
from tests.device.operator_calls import watched_operators
from tests.device.test_updates import WITHOUT_EFFECT
from tests.device.updates import DEVICE, HOST, ON_GPU, emulate_float16
from tests.support.alone import metrics, trained

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces") / "set"
    face_set.ensure(folder, face_set.DrawnFaces(20, 8, (48, 48), seed=3))
    return folder


def run_on(context: object, program: ModuleType, *words: object) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "choose", lambda *_: context)
        return trained(program, *words)


def options(faces: Path, models: Path, updates: int, *further: object) -> list[Any]:
    return [
        *("--rec", faces, "--network", "tiny", "--embedding-size", 32, "--batch-size", 16),
        *("--models-root", models, "--val-targets", "unseen", "--frequent", 1, "--lr", 1e-3),
        *("--lr-schedule", "step", "--lr-steps", 100, "--scale", 16, "--max-update", updates),
        *further,
    ]


def assert_same_run(found: Path, expected: Path) -> None:
    """The same losses, accuracies and model, but for rounding, of which a GPU has more."""
    losses, wanted = metrics(found, "loss"), metrics(expected, "loss")
    assert losses
    np.testing.assert_allclose(losses, wanted, rtol=2e-2 if ON_GPU else 1e-3)
    reached, aim = (metrics(run, "accuracy")[-1] for run in (found, expected))
    # A pair or two whose distance is next to the threshold.
    np.testing.assert_allclose(reached, aim, atol=0.05)
    ours, theirs = (read_parameters(run / "model-0000.params") for run in (found, expected))
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        if not name.endswith(WITHOUT_EFFECT):
            allowed = (0.1 if ON_GPU else 0.02) * abs(values).max()
            np.testing.assert_allclose(ours[name], values, atol=allowed)


@pytest.mark.parametrize("program", [train, classify])
def test_a_run_on_a_device_is_that_on_the_host(program, faces, tmp_path) -> None:
    words = ["--dataset", "synthetic", "--num-images", 200, "--batch-size", 32, "--epochs", 1]
    if program is train:
        words = options(faces, tmp_path, 3, "--recompute", "--on-nan", "skip")
    with watched_operators() as contexts:
        run_on(DEVICE, program, *words, "--models-root", tmp_path / "device")
    assert str(DEVICE) in contexts
    run_on(HOST, program, *words, "--models-root", tmp_path / "host")
    assert_same_run(tmp_path / "device", tmp_path / "host")


ADAPTIVE = ("--loss", "curricularface", "--optimizer", "adamw", "--wd", "0.05")


@pytest.fixture(scope="module")
def whole(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of four updates on the host."""
    folder = tmp_path_factory.mktemp("whole")
    run_on(HOST, train, *options(faces, folder, 4, *ADAPTIVE))
    return folder


@pytest.mark.parametrize(("first", "second"), [
    (DEVICE, HOST), pytest.param(HOST, DEVICE, marks=pytest.mark.device),
])  # fmt: skip
def test_a_checkpoint_of_one_context_goes_on_on_another(first, second, faces, whole, tmp_path):
    run_on(first, train, *options(faces, tmp_path, 2, *ADAPTIVE))
    with watched_operators():
        said = run_on(second, train, *options(faces, tmp_path, 4, *ADAPTIVE))
    assert "update 3/4" in said and "update 1/4" not in said
    assert_same_run(tmp_path, whole)


@pytest.mark.device
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_quick_start_learns(dtype, tmp_path, monkeypatch) -> None:
    """As two ranks on the host do, which end at 0.9577; a processor takes 80 s, 260 in float16."""
    emulate_float16(monkeypatch)
    folder = tmp_path / "models"
    words = ("--dataset", "synthetic", "--rec", tmp_path / "synthetic", "--batch-size", 128)
    run_on(DEVICE, train, *words, "--dtype", dtype, "--models-root", folder)
    accuracies, losses = metrics(folder, "accuracy"), metrics(folder, "loss")
    assert accuracies[0] < 0.6 and accuracies[-1] >= 0.93, accuracies
    assert losses[-1] < 0.5 * losses[0]
