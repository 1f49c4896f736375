"""The classification program on sets of real size: CIFAR-10's files and a record file.

``make classification`` runs all of it, minutes; the normal tests what is quick of it.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import cv2
import numpy as np
import pytest

import classify
from data.drawn.patterns import DrawnImages
from data.records.writer import RecordWriter
from tests.support.alone import run_alone
from tests.support.job import Job
from training.checkpoint.reader import Checkpoint

CLASSES = 10
VALIDATION = 10_000


def slow(test):
    for mark in (pytest.mark.launcher, pytest.mark.classification, pytest.mark.timeout(3000)):
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def cifar(tmp_path_factory) -> Path:
    """Two files of the binary version, drawn: data_batch_1 and test_batch, 10,000 images each."""
    folder = tmp_path_factory.mktemp("cifar")
    for name, part in (("data_batch_1", "training"), ("test_batch", "validation")):
        drawn = DrawnImages(part, num_classes=CLASSES, count=500, shape=(32, 32, 3), seed=1)
        rows = np.empty((VALIDATION, 3073), np.uint8)
        for index in range(len(drawn)):
            image, label = drawn.decoded(index)
            rows[index, 0], rows[index, 1:] = label, image.transpose(2, 0, 1).ravel()
        # The same ones again and again: what is asked is whether each is counted.
        rows.reshape(-1, len(drawn), 3073)[1:] = rows[: len(drawn)]
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


def start(ranks: int, models: Path, few: int, *options: object) -> Job:
    """Train on the first images of CIFAR-10's files, or on a whole set for 0."""
    if few:
        options, program = (few, *options), "tests.support.few_images"
    else:
        program = "classify.py"
    return Job("--gloo", ranks, models, *options, program=program)


def validations(models: Path, field: str) -> list:
    records = [json.loads(line) for line in (models / "metrics.jsonl").read_text().splitlines()]
    return [record[field] for record in records if record.get("target") == "validation"]


@slow
@pytest.mark.parametrize("model", ["LeNet", "ResNet18"])
def test_killed_in_epoch_2_and_resumed(model: str, cifar: Path, tmp_path: Path) -> None:
    """The right epoch and best accuracy, over exactly 10,000 images."""
    options = ["--dataset", "cifar10", "--data-dir", cifar, "--model", model, "--epochs", 2,
               "--batch-size", 16, "--frequent", 1]  # fmt: skip
    first = tmp_path / "checkpoints/update-00000008/manifest.json"
    # The recipe's 0.1 for each rank is too much for the first updates on so few images.
    with start(2, tmp_path, 256, *options, "--lr", 0.02) as job:
        job.wait_until(lambda: first.exists() and re.search("update 9/", job.log(0)), 2500)
        os.kill(job.processes()[1], signal.SIGKILL)
        assert job.wait(100) != 0
    (before,) = validations(tmp_path, "accuracy")
    with start(2, tmp_path, 256, *options, "--resume", "--lr=0.01") as job:
        assert job.wait(2500) == 0, job.said()
        assert "resumed at update 8 " in job.log(0)
        assert "--lr was 0.02 and is 0.01" in job.log(0)
    assert validations(tmp_path, "epoch") == [1, 2]
    assert validations(tmp_path, "total") == [VALIDATION] * 2
    assert validations(tmp_path, "best")[1] == max(before, validations(tmp_path, "accuracy")[1])


@slow
def test_three_ranks_count_10_000_images(cifar: Path, tmp_path: Path) -> None:
    options = ("--dataset", "cifar10", "--data-dir", cifar, "--model", "ResNet18", "--epochs", 2)
    with start(3, tmp_path, 240, *options, "--batch-size", 16, "--lr", 0.01) as job:
        assert job.wait(2500) == 0, job.said()
    assert validations(tmp_path, "total") == [VALIDATION] * 2


def test_momentum_goes_on(tmp_path: Path) -> None:
    """Where the learning rate has become nothing, weights move by what momentum is left."""
    options = ["--dataset", "synthetic", "--image-size", 16, "--num-images", 64, "--batch-size", 32,
               "--wd", 0, "--lr-schedule", "poly", "--models-root", tmp_path]  # fmt: skip
    assert run_alone(classify, *options, "--epochs", 1).returncode == 0
    assert run_alone(classify, *options, "--epochs", 2, "--resume", "--lr=1e-30").returncode == 0
    before, after = (Checkpoint(tmp_path / f"checkpoints/update-{update:08d}") for update in (2, 4))
    for name in ("conv1_weight", "fc1_weight"):
        weights = before.replicated(f"classifier/{name}"), after.replicated(f"classifier/{name}")
        momentum = before.replicated(f"optimizer/{name}.0")
        assert np.abs(momentum).max() > 0
        np.testing.assert_allclose(
            weights[1] - weights[0], (0.9 + 0.9**2) * momentum, rtol=1e-3, atol=1e-7
        )


def stripes(label: int, rng: np.random.Generator) -> bytes:
    """A JPEG with stripes of the color of a class; place, width and background are random."""
    color = np.array([18 * label, 200, 230], np.uint8)
    color = cv2.cvtColor(color[None, None], cv2.COLOR_HSV2BGR)[0, 0]
    wave = np.sin(np.arange(72) / rng.uniform(2, 6) + rng.uniform(0, 6))
    image = rng.integers(0, 90, (72, 72, 3), np.uint8)
    image[:, wave > -0.2] = color
    return cv2.imencode(".jpg", image)[1].tobytes()


@slow
def test_resnet50_learns_a_record_file(tmp_path: Path) -> None:
    """2,000 images of 10 classes to train on, 200 to validate: stripes of ten colors."""
    rng = np.random.default_rng(5)
    options: list[object] = ["--dataset", "imagenet", "--image-size", 64, "--epochs", 3]
    for part, count in (("train", 200), ("val", 20)):
        path = tmp_path / part / f"{part}.rec"
        options += [f"--rec-{part}", path]
        with RecordWriter(path, image_size=(72, 72)) as writer:
            for label in np.repeat(range(CLASSES), count):
                writer.write(stripes(label, rng), int(label))
    options += ["--batch-size", 32, "--lr", 0.02, "--lr-schedule", "cosine"]
    models = tmp_path / "models"
    with start(2, models, 0, *options, "--warmup-epochs", 0.5, "--last-gamma") as job:
        assert job.wait(2500) == 0, job.said()
    assert json.loads((models / "config.json").read_text())["model"] == "resnet50_v1"
    assert validations(models, "total") == [200] * 3
    assert validations(models, "accuracy")[-1] > 0.9
