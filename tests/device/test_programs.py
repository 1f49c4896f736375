"""Runs of the programs on a device: verification, checkpoints, and the model that is left."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import classify
import train
from backbones.graph.parameter_file import read_parameters
from data.drawn import face_set
from runtime import devices
from tests.device.half_products import emulate_float16
from tests.device.operator_calls import watched_operators
from tests.device.test_updates import WITHOUT_EFFECT
from tests.device.updates import DEVICE, HOST, ON_GPU
from tests.support.alone import run_alone

pytestmark = pytest.mark.thorough
CLASSIFIER = ("--dataset", "synthetic", "--num-images", 200, "--batch-size", 32, "--epochs", 1)


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces") / "set"
    face_set.ensure(folder, identities=20, images_per_identity=8, image_size=(48, 48), seed=3)
    return folder


def run_on(context: object, program: ModuleType, *words: object) -> str:
    """Run a program to its end on a context; returns what it printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "choose", lambda *_: context)
        result = run_alone(program, *words)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def options(faces: Path, models: Path, updates: int, *further: object) -> list[object]:
    return [
        *("--rec", faces, "--network", "tiny", "--embedding-size", 32, "--batch-size", 16),
        *("--models-root", models, "--val-targets", "unseen", "--frequent", 1, "--lr", 1e-3),
        *("--lr-schedule", "step", "--lr-steps", 100, "--scale", 16, "--max-update", updates),
        *further,
    ]


def reports(folder: Path, name: str) -> list[float]:
    """The numbers of this name in the reports of a run, such as "loss" or "accuracy"."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [record[name] for record in map(json.loads, lines) if name in record]


def assert_same_run(found: Path, expected: Path) -> None:
    """The same losses, accuracies and model, but for rounding, of which a GPU has more."""
    losses = reports(found, "loss"), reports(expected, "loss")
    assert losses[0]
    np.testing.assert_allclose(*losses, rtol=2e-2 if ON_GPU else 1e-3)
    accuracies = reports(found, "accuracy"), reports(expected, "accuracy")
    # A pair or two whose distance is next to the threshold.
    np.testing.assert_allclose(accuracies[0][-1], accuracies[1][-1], atol=0.05)
    parameters, wanted = (read_parameters(run / "model-0000.params") for run in (found, expected))
    assert parameters.keys() == wanted.keys()
    for name, values in wanted.items():
        if not name.endswith(WITHOUT_EFFECT):
            allowed = (0.1 if ON_GPU else 0.02) * abs(values).max()
            np.testing.assert_allclose(parameters[name], values, atol=allowed)


def test_a_checkpoint_of_one_context_goes_on_on_another(faces: Path, tmp_path: Path) -> None:
    further = ["--loss", "curricularface", "--optimizer", "adamw", "--wd", "0.05"]
    run_on(HOST, train, *options(faces, tmp_path / "whole", 4, *further))
    for first, second in ((DEVICE, HOST), (HOST, DEVICE)):
        models = tmp_path / f"from {first}"
        with watched_operators() as contexts:
            run_on(first, train, *options(faces, models, 2, *further, "--on-nan", "skip"))
            said = run_on(second, train, *options(faces, models, 4, *further, "--on-nan", "skip"))
        assert "update 3/4" in said and "update 1/4" not in said
        assert str(DEVICE) in contexts
        assert_same_run(models, tmp_path / "whole")


def test_a_classifier_on_a_device_is_that_on_the_host(tmp_path: Path) -> None:
    with watched_operators():
        run_on(DEVICE, classify, *CLASSIFIER, "--models-root", tmp_path / "device")
    run_on(HOST, classify, *CLASSIFIER, "--models-root", tmp_path / "host")
    assert_same_run(tmp_path / "device", tmp_path / "host")


@pytest.mark.device
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_quick_start_learns(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two ranks on the host do, which end at 0.9577; a processor takes 80 s, 260 in float16."""
    emulate_float16(monkeypatch)
    folder = tmp_path / "models"
    words = ("--dataset", "synthetic", "--rec", tmp_path / "synthetic", "--batch-size", 128)
    run_on(DEVICE, train, *words, "--dtype", dtype, "--models-root", folder)
    accuracies, losses = reports(folder, "accuracy"), reports(folder, "loss")
    assert accuracies[0] < 0.6 and accuracies[-1] >= 0.93, accuracies
    assert losses[-1] < 0.5 * losses[0]
