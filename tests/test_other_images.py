"""Runs that go on with the images of before, with more, and with others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import cv2
import numpy as np
import pytest

import classify
import train
from data.records.writer import RecordWriter
from tests.support.alone import run_alone

Run = Callable[..., "CompletedProcess[str]"]
OTHERS = "64 images there, 64 here, of which some are others"


def write_set(folder: Path, counts: list[int], first: int = 0) -> Path:
    """A record set of single colors, from a number on."""
    with RecordWriter(folder, image_size=(64, 64)) as writer:
        for label, count in enumerate(counts):
            for number in range(count):
                pixels = np.full((64, 64, 3), first + 10 * label + number, np.uint8)
                writer.write(cv2.imencode(".png", pixels)[1].tobytes(), label)
    return folder


@pytest.fixture
def faces(tmp_path: Path) -> Run:
    """Train on a folder up to an update."""

    def run(folder: Path, update: int, *options: object) -> CompletedProcess[str]:
        return run_alone(
            train,
            *("--rec", folder, "--models-root", tmp_path / "models", "--network", "tiny"),
            *("--embedding-size", 16, "--batch-size", 4, "--frequent", 1, "--save-interval", 1),
            *("--max-update", update, *options),
        )

    return run


@pytest.fixture
def drawn(tmp_path: Path) -> Run:
    """Classify drawn images for some epochs."""

    def run(images: int, epochs: int, *options: object) -> CompletedProcess[str]:
        return run_alone(
            classify,
            *("--dataset", "synthetic", "--image-size", 16, "--batch-size", 16, "--frequent", 1),
            *("--models-root", tmp_path / "models", "--num-images", images, "--epochs", epochs),
            *options,
        )

    return run


def checkpoint(tmp_path: Path, update: int) -> Path:
    return tmp_path / f"models/checkpoints/update-{update:08d}"


def resumed(done: CompletedProcess[str], path: Path) -> str:
    """What a run has said of its images that has gone on from a checkpoint; empty for nothing."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"from {path}" in done.stdout
    return "".join(line for line in done.stdout.splitlines() if "images than" in line)


def refused(done: CompletedProcess[str], path: Path, text: str) -> None:
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {path} was trained on other images: {text}; give the")
    assert "or go on with these images by --resume anyway" in done.stderr


@pytest.mark.thorough
def test_faces(tmp_path: Path, faces: Run) -> None:
    old = write_set(tmp_path / "old", [4, 4, 4])
    assert faces(old, 2).returncode == 0
    moved, at = shutil.copytree(old, tmp_path / "moved"), checkpoint(tmp_path, 2)
    (moved / "train.idx").unlink()
    assert not resumed(faces(moved, 3), at)

    more, at = write_set(tmp_path / "more", [5, 4, 4]), checkpoint(tmp_path, 3)
    said = f"training goes on with more images than {at} was trained on: 12 images there, 13 here; "
    assert said in resumed(faces(more, 4), at)
    # What it was trained on since then.
    at = checkpoint(tmp_path, 4)
    refused(faces(old, 5), at, "13 images there, 12 here")
    # Who names a checkpoint insists, and images of --debug are not compared.
    other = write_set(tmp_path / "other", [4, 4, 5], 100)
    assert "training goes on with other images" in resumed(faces(other, 5, "--resume", at), at)
    assert not resumed(faces(more, 6, "--debug"), checkpoint(tmp_path, 5))
    assert not resumed(faces(old, 7), checkpoint(tmp_path, 6))
    new = faces(other, 1, "--resume", "never")
    assert new.returncode == 0 and "images than" not in new.stdout


@pytest.mark.thorough
def test_classification(tmp_path: Path, drawn: Run) -> None:
    assert drawn(64, 1, "--lr", 0.1).returncode == 0
    at = checkpoint(tmp_path, 4)
    refused(drawn(32, 2), at, "64 images there, 32 here")
    refused(drawn(64, 2, "--seed", 2), at, OTHERS)
    # Also before a schedule is trained again.
    again = (64, 1, "--seed", 2, "--lr", 0.01, "--resume")
    refused(drawn(*again), at, OTHERS)
    done = drawn(*again, "anyway")
    assert "other images than" in resumed(done, at)
    assert "the schedule is trained again, from update 4 to 8" in done.stdout
    # It is asked for once.
    config, at = tmp_path / "models/config.json", checkpoint(tmp_path, 8)
    assert json.loads(config.read_text())["resume"] == "auto"
    refused(drawn(64, 2, "--seed", 3, "--config", config), at, OTHERS)
    assert not resumed(drawn(64, 2, "--seed", 2), at)
    assert "more images than" in resumed(drawn(96, 3, "--seed", 2), checkpoint(tmp_path, 12))
