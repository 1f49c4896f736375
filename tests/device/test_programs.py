"""Runs of the programs on a device: verification, checkpoints, and the model that is left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import classify
import train
from data.drawn import face_set
from data.verification.bin_file import read_bin, write_bin
from tests.device.host_syncs import counted_host_syncs
from tests.device.operator_calls import watched_operators
from tests.device.programs import model, reports, run_on
from tests.device.test_updates import WITHOUT_EFFECT
from tests.device.updates import DEVICE, HOST

ADAMW = ["--optimizer", "adamw", "--wd", "0.05"]
CLASSIFIER = ("--dataset", "synthetic", "--num-images", 200, "--batch-size", 32, "--epochs", 1)


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces") / "set"
    face_set.ensure(folder, identities=20, images_per_identity=8, image_size=(48, 48), seed=3)
    # A few of the pairs: they are verified twice in every run.
    target = read_bin(folder / "unseen.bin")
    pairs = range(0, len(target.same), len(target.same) // 40)
    images = [target.images[2 * pair + side] for pair in pairs for side in (0, 1)]
    write_bin(folder / "unseen.bin", images, [bool(target.same[pair]) for pair in pairs])
    return folder


def options(faces: Path, models: Path, updates: int, *further: object) -> list[object]:
    return [
        *("--rec", faces, "--network", "tiny", "--embedding-size", 32, "--batch-size", 16),
        *("--models-root", models, "--val-targets", "unseen", "--frequent", 1, "--lr", 1e-3),
        *(
            "--lr-schedule",
            "step",
            "--lr-steps",
            100,
            "--scale",
            16,
            "--max-update",
            updates,
            *further,
        ),
    ]


def assert_same_run(found: Path, expected: Path, start: int = 0) -> None:
    """The same losses from an update on, accuracies and model, but for rounding."""
    losses = reports(found, "loss"), reports(expected, "loss")
    assert len(losses[0]) > start
    np.testing.assert_allclose(losses[0][start:], losses[1][start:], rtol=1e-3)
    accuracies = reports(found, "accuracy"), reports(expected, "accuracy")
    # A pair or two whose distance lies beside the threshold.
    np.testing.assert_allclose(accuracies[0][-1], accuracies[1][-1], atol=0.05)
    parameters, wanted = model(found), model(expected)
    assert parameters.keys() == wanted.keys()
    for name, values in wanted.items():
        if not name.endswith(WITHOUT_EFFECT):
            np.testing.assert_allclose(parameters[name], values, atol=0.02 * abs(values).max())


@pytest.mark.parametrize("further", [[], ["--recompute"], ["--on-nan", "skip"]], ids=str)
def test_a_run_on_a_device_is_that_on_the_host(
    further: list[str], faces: Path, tmp_path: Path
) -> None:
    with watched_operators() as calls:
        run_on(DEVICE, train, *options(faces, tmp_path / "device", 3, *further))
    assert {array.context for call in calls for array in call.arrays} > {"cpu(1)"}
    run_on(HOST, train, *options(faces, tmp_path / "host", 3, *further))
    assert_same_run(tmp_path / "device", tmp_path / "host")


@pytest.mark.parametrize(
    ("first", "second", "optimizer"),
    [(DEVICE, HOST, []), (HOST, DEVICE, ADAMW), (DEVICE, DEVICE, ADAMW), (DEVICE, DEVICE, [])],
)
def test_a_checkpoint_of_one_context_goes_on_on_another(
    first: object, second: object, optimizer: list[str], faces: Path, tmp_path: Path
) -> None:
    further = ["--loss", "curricularface", *optimizer]
    run_on(first, train, *options(faces, tmp_path / "parts", 2, *further))
    with watched_operators():
        said = run_on(second, train, *options(faces, tmp_path / "parts", 4, *further))
    assert "update 3/4" in said and "update 1/4" not in said
    run_on(HOST, train, *options(faces, tmp_path / "whole", 4, *further))
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_a_classifier_on_a_device_is_that_on_the_host(tmp_path: Path) -> None:
    with watched_operators():
        run_on(DEVICE, classify, *CLASSIFIER, "--models-root", tmp_path / "device")
    run_on(HOST, classify, *CLASSIFIER, "--models-root", tmp_path / "host")
    assert_same_run(tmp_path / "device", tmp_path / "host")


@pytest.mark.parametrize("program", [train, classify], ids=lambda program: program.__name__)
def test_the_loop_waits_once_in_an_update(program: ModuleType, faces: Path, tmp_path: Path) -> None:
    counts = []
    for updates in (8, 12):
        models = tmp_path / str(updates)
        words = options(faces, models, updates, "--frequent", 1000)
        if program is classify:
            images = ("--num-images", 16 * updates, "--batch-size", 16, "--frequent", 1000)
            words = [*CLASSIFIER, *images, "--models-root", models]
        with counted_host_syncs() as syncs:
            run_on(DEVICE, program, *words)
        counts.append(Counter(f"{sync.function} {sync.site}" for sync in syncs))
    more = counts[1] - counts[0]
    # More images are more to validate, too: Network.extract.
    in_updates = {site: n for site, n in more.items() if "backbones/network.py" not in site}
    assert sum(in_updates.values()) == 4, more
