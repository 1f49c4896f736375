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
from runtime.mxnet import mx
from tests.support.alone import run_alone
from tests.support.job import Job
from training.checkpoint.reader import Checkpoint

CLASSES = 10
VALIDATION = 10_000
slow = [pytest.mark.launcher, pytest.mark.classification, pytest.mark.timeout(3000)]


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


def start(ranks: int, models: Path, *options: object, few: int | None = None) -> Job:
    program = "classify.py" if few is None else "tests.support.few_images"
    return Job("--gloo", ranks, models, *([] if few is None else [few]), *options, program=program)


def validations(models: Path) -> list[dict]:
    records = [json.loads(line) for line in (models / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record.get("target") == "validation"]


def finish(job: Job, seconds: float = 2500) -> None:
    with job:
        assert job.wait(seconds) == 0, job.said()


def kill_in_epoch_2(job: Job, updates_per_epoch: int) -> None:
    first = job.models / f"checkpoints/update-{updates_per_epoch:08d}/manifest.json"
    second = re.compile(f"update {updates_per_epoch + 1}/")
    with job:
        job.wait_until(lambda: first.exists() and second.search(job.log(0)), 2500)
        os.kill(job.processes()[1], signal.SIGKILL)
        assert job.wait(100) != 0


@pytest.mark.parametrize(
    ("model", "few", "batch"),
    [pytest.param("LeNet", 256, 16, marks=slow), pytest.param("ResNet18", 256, 16, marks=slow)],
)
def test_killed_in_epoch_2_and_resumed(model, few, batch, cifar: Path, tmp_path: Path) -> None:
    """The right epoch and best accuracy, over exactly 10,000 images."""
    options = ["--dataset", "cifar10", "--data-dir", cifar, "--model", model, "--epochs", 2,
               "--batch-size", batch, "--frequent", 1]  # fmt: skip
    updates = few // (2 * batch)
    # The recipe's 0.1 for each rank is too much for the first updates on so few images.
    kill_in_epoch_2(start(2, tmp_path, *options, "--lr", 0.02, few=few), updates)
    (before,) = validations(tmp_path)
    job = start(2, tmp_path, *options, "--resume", "--lr=0.01", few=few)
    finish(job)
    said = job.log(0)
    assert f"resumed at update {updates} " in said
    assert "--lr was 0.02 and is 0.01" in said
    found = validations(tmp_path)
    assert [record["epoch"] for record in found] == [1, 2]
    assert [record["total"] for record in found] == [VALIDATION] * 2
    assert found[1]["best"] == max(before["accuracy"], found[1]["accuracy"])


@pytest.mark.parametrize("model", [pytest.param("ResNet18", marks=slow)])
def test_three_ranks_count_10_000_images(model, cifar: Path, tmp_path: Path) -> None:
    finish(
        start(
            *(3, tmp_path, "--dataset", "cifar10", "--data-dir", cifar, "--model", model),
            *("--epochs", 2, "--batch-size", 16, "--lr", 0.01),
            few=240,
        )
    )
    assert [record["total"] for record in validations(tmp_path)] == [VALIDATION] * 2


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


@pytest.fixture(scope="module")
def record_files(tmp_path_factory) -> dict[str, Path]:
    """2,000 images of 10 classes to train on, 200 to validate: stripes of ten colors."""
    folder = tmp_path_factory.mktemp("records")
    rng = np.random.default_rng(5)
    paths = {}
    for part, count in (("train", 2000), ("val", 200)):
        paths[part] = folder / part / f"{part}.rec"
        with RecordWriter(paths[part], image_size=(72, 72)) as writer:
            for label in range(CLASSES):
                for _ in range(count // CLASSES):
                    writer.write(stripes(label, rng), label)
    return paths


def stripes(label: int, rng: np.random.Generator) -> bytes:
    """A JPEG with stripes of the color of a class; place, width and background are random."""
    color = np.array([18 * label, 200, 230], np.uint8)
    color = cv2.cvtColor(color[None, None], cv2.COLOR_HSV2BGR)[0, 0]
    wave = np.sin(np.arange(72) / rng.uniform(2, 6) + rng.uniform(0, 6))
    image = rng.integers(0, 90, (72, 72, 3), np.uint8)
    image[:, wave > -0.2] = color
    return cv2.imencode(".jpg", image)[1].tobytes()


@pytest.mark.launcher
@pytest.mark.classification
@pytest.mark.timeout(3000)
def test_resnet50_learns_a_record_file(record_files: dict[str, Path], tmp_path: Path) -> None:
    finish(
        start(
            *(2, tmp_path, "--dataset", "imagenet", "--image-size", 64, "--epochs", 3),
            *("--rec-train", record_files["train"], "--rec-val", record_files["val"]),
            *("--batch-size", 32, "--lr", 0.02, "--lr-schedule", "cosine"),
            *("--warmup-epochs", 0.5, "--last-gamma"),
        )
    )
    assert json.loads((tmp_path / "config.json").read_text())["model"] == "resnet50_v1"
    found = validations(tmp_path)
    assert [record["total"] for record in found] == [200] * 3
    assert found[-1]["accuracy"] > 0.9
    network = mx.gluon.SymbolBlock.imports(
        str(tmp_path / "model-symbol.json"), ["data"], str(tmp_path / "model-0000.params")
    )
    assert network(mx.nd.zeros((1, 3, 64, 64))).shape == (1, CLASSES)
