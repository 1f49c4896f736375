"""The classification program on CIFAR-10's files in their real size, and what momentum leaves.

``make classification`` runs all of it, minutes; the normal tests what is quick of it.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

import classify
from data.drawn.patterns import DrawnImages
from tests.support.alone import run_alone
from tests.support.job import Job
from training.checkpoint.reader import Checkpoint

CLASSES = 10
VALIDATION = 10_000


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


def start(models: Path, *options: object) -> Job:
    """Train on the first 256 images of CIFAR-10's files."""
    return Job("--gloo", 2, models, 256, *options, program="tests.support.few_images")


def validations(models: Path, field: str) -> list:
    records = [json.loads(line) for line in (models / "metrics.jsonl").read_text().splitlines()]
    return [record[field] for record in records if record.get("target") == "validation"]


@pytest.mark.launcher
@pytest.mark.classification
@pytest.mark.timeout(3000)
def test_killed_in_epoch_2_and_resumed(cifar: Path, tmp_path: Path) -> None:
    """The right epoch and best accuracy, over exactly 10,000 images."""
    options = ["--dataset", "cifar10", "--data-dir", cifar, "--model", "ResNet18", "--epochs", 2,
               "--batch-size", 16, "--frequent", 1]  # fmt: skip
    first = tmp_path / "checkpoints/update-00000008/manifest.json"
    # The recipe's 0.1 for each rank is too much for the first updates on so few images.
    with start(tmp_path, *options, "--lr", 0.02) as job:
        job.wait_until(lambda: first.exists() and re.search("update 9/", job.log(0)), 2500)
        os.kill(job.processes()[1], signal.SIGKILL)
        assert job.wait(100) != 0
    (before,) = validations(tmp_path, "accuracy")
    with start(tmp_path, *options, "--resume", "--lr=0.01") as job:
        assert job.wait(2500) == 0, job.said()
        assert "resumed at update 8 " in job.log(0)
        assert "--lr was 0.02 and is 0.01" in job.log(0)
    assert validations(tmp_path, "epoch") == [1, 2]
    assert validations(tmp_path, "total") == [VALIDATION] * 2
    assert validations(tmp_path, "best")[1] == max(before, validations(tmp_path, "accuracy")[1])


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
