"""Both programs as users start them: launchers, runs that must learn, and files that are gone."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest

import classify
import train
from data.drawn import face_set
from tests.faults.__main__ import contents
from tests.support.alone import assert_one_line, metrics, run_alone, trained
from tests.support.foreign_records import im2rec, write_records
from tests.support.job import Started, holder
from tests.support.launch import finish, ranks
from training.checkpoint.reader import Checkpoint


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faces") / "set"
    with pytest.MonkeyPatch.context() as patch:
        # They are verified twice in every run.
        patch.setattr(face_set, "_VERIFICATION_PAIRS", 300)
        return face_set.ensure(folder, face_set.DrawnFaces(40, 12, (64, 64), seed=3))


@pytest.mark.launcher
def test_run_sh(faces, tmp_path):
    result = finish(
        *("bash", "run.sh", "--rec", faces, "--embedding-size", 64, "--batch-size", 16),
        *("--max-update", 3, "--models-root", tmp_path, "--val-targets", "unseen,missing"),
        *("--frequent", 1), NETWORK="tiny", NP="2",
    )  # fmt: skip
    for name in ("model-symbol.json", "model-0000.params", "metrics.jsonl"):
        assert (tmp_path / name).stat().st_size > 0
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    for figure in ("accuracy-0", "roc-0", "scores-0", "loss", "throughput", "samples"):
        assert f'<figure id="{figure}">' in report, figure
    logs = [path.read_text() for path in sorted((tmp_path / "logs").glob("rank-*.log"))]
    first, second = (re.findall(r"update (\d+)/3  .*?loss (\S+)", log) for log in logs)
    assert first == second, "the loss of the global batch is everybody's"
    assert [update for update, _ in first] == ["1", "2", "3"]
    losses = {float(loss) for _, loss in first}
    assert len(losses) == 3 and all(map(math.isfinite, losses)), "the network has changed"
    assert "VERIFICATION SET MISSING" in result.stdout + result.stderr
    assert "accuracy untrained" in result.stdout
    assert "%|" not in result.stdout, "a progress bar without a terminal"
    assert json.loads((tmp_path / "config.json").read_text())["max_update"] == 3
    running = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not [words for words in running if str(tmp_path) in " ".join(words)]


@pytest.mark.thorough
@pytest.mark.launcher
@pytest.mark.learning
def test_two_ranks_learn_faces(faces, tmp_path):
    finish(
        *("bash", "run.sh", "--rec", faces, "--network", "tiny", "--embedding-size", 64),
        *("--models-root", tmp_path, "--batch-size", 32, "--loss", "softmax", "--scale", 16),
        *("--val-targets", "unseen", "--lr", 0.2, "--warmup", 20, "--lr-schedule", "cosine"),
        *("--max-update", 120, "--frequent", 20), NP="2",
    )  # fmt: skip
    losses, accuracies = metrics(tmp_path, "loss"), metrics(tmp_path, "accuracy")
    assert losses[-1] < 0.1 * losses[0]
    assert accuracies[-1] > accuracies[0] + 0.12


SMALL = ("--dataset", "synthetic", "--image-size", 16, "--batch-size", 32, "--num-images")
OF = {"target": "validation"}


def write_set(folder: Path, broken):
    """Write record files of 48 and 24 images, some of them broken."""
    image = bytes(cv2.imencode(".jpg", np.full((40, 40, 3), 180, np.uint8))[1])
    for name, keys in (("train", range(48)), ("val", range(24))):
        payloads = [image[:200] if key in broken else image for key in keys]
        write_records(folder / name, im2rec([key % 3 for key in keys], payloads, keys))
    return [
        *("--dataset", "imagenet", "--rec-train", folder / "train/train.rec"),
        *("--rec-val", folder / "val/train.rec", "--models-root", folder / "models"),
        *("--image-size", 32, "--batch-size", 8, "--epochs", 2, "--lr", 0.001),
        *("--model", "LeNet", "--warmup-epochs", 0),
    ]


def test_broken_records_are_skipped_and_named(tmp_path):
    options = write_set(tmp_path, broken=(0, 7, 13))
    said = trained(classify, *options)
    for name in ("train", "val"):
        for key in (0, 7, 13):
            line = f"{tmp_path}/{name}/train.rec: record {key}: the image cannot"
            assert said.count(f"skipped a broken record: {line}") == 1, said
    assert metrics(tmp_path / "models", "total", **OF) == [21, 21]
    assert said.count("3 of 24 images to validate on cannot be read, and do not count") == 2
    few = run_alone(classify, *options, "--resume", "never", "--max-bad-records", 2)
    assert_one_line(few, "3 broken records, more than the 2 of --max-bad-records; the last is")


@pytest.mark.launcher
def test_three_ranks_count_every_validation_image_once(tmp_path):
    """All broken validation images are those of rank 1, whose share is a third of them."""
    options = write_set(tmp_path, broken=range(1, 24, 6))
    wire = ("--fp16-allreduce", "--gradient-predivide-factor", 2.0)
    words = (*options, *wire, "--label-smoothing", 0.1, "--mixup", 0.2)
    result = finish(*ranks("--gloo", 3), sys.executable, "classify.py", *words)
    models = tmp_path / "models"
    assert metrics(models, "total", **OF) == [20, 20]
    assert result.stdout.count("4 of 24 images to validate on cannot be read") == 2
    assert json.loads((models / "config.json").read_text())["epochs"] == 2


@pytest.mark.thorough
def test_the_tutorials_resume_trains_the_schedule_again(tmp_path):
    """There are 16 updates in an epoch."""
    options = (*SMALL, 512, "--epochs", 2, "--models-root", tmp_path, "--frequent", 1)
    again = (*options, "--resume", "--lr=0.001")
    trained(classify, *options)
    assert metrics(tmp_path, "best", **OF)[-1] > 0.7
    trained(classify, *again)
    assert metrics(tmp_path, "epoch", **OF) == [1, 2, 3, 4]
    accuracies = metrics(tmp_path, "best", **OF)
    assert accuracies == sorted(accuracies)
    # Half a cosine from the new rate to 0, after the 32 updates of the first run.
    expected = [0.0005 * (1 + np.cos(np.pi * update / 32)) for update in range(32)]
    assert metrics(tmp_path, "lr")[32:] == pytest.approx(expected)
    said = trained(classify, *again)
    assert "update 64 of 64 is finished already: nothing to train" in said


def test_the_status_is_that_of_the_signal(tmp_path):
    options = (*SMALL, 512, "--epochs", 10_000, "--frequent", 1, "--models-root", tmp_path)
    with Started(tmp_path, sys.executable, "classify.py", *options) as job:
        job.wait_until(lambda: "update 3/" in job.said())
        assert f"process {job.process.pid}, python" in holder(tmp_path)
        job.process.send_signal(signal.SIGINT)
        assert job.wait(60) == 130
    assert len(list((tmp_path / "checkpoints").glob("update-*"))) >= 1


# An update writes 200 rows of 4,096 bytes, and those that it overwrites into a log.
STORED = (
    "--debug --rec . --num-classes 2000 --network tiny --embedding-size 512 --batch-size 4 "
    "--sample-ratio 0.1 --lr 0.01 --save-interval 2 --frequent 1 --verbose 10000 --max-update 12"
).split()


def train_stored(models: Path, *options: object, status: int = 0):
    words = (*STORED, "--models-root", models, *options)
    return finish(sys.executable, "train.py", *words, status=status)


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="only root mounts")
@pytest.mark.launcher
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path):
    disk, models, undisturbed = (tmp_path / name for name in ("disk", "models", "undisturbed"))
    train_stored(undisturbed)
    store, end = ("--center-store", disk / "centers"), "checkpoints/update-00000012"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", disk], check=True)
    try:
        assert_one_line(
            train_stored(models, *store, status=2),
            f"--center-store {disk / 'centers'} cannot be read or written: No space",
            "see to its disk and start again: the run goes on from its last checkpoint",
        )
        last = sorted((models / "checkpoints").glob("update-*"))[-1]
        assert last.name < Path(end).name
        subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
        done = train_stored(models, *store)
        assert f"{last}" in done.stdout + done.stderr, done.stderr
        assert contents(models / end, store[1]) == contents(undisturbed / end)
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.fixture(scope="module")
def whole(faces, tmp_path_factory):
    models = tmp_path_factory.mktemp("whole") / "models"
    assert "starting anew" in train_faces(faces, models)
    return models


@pytest.fixture
def models(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "models")


def settings(faces, models, *options):
    return [
        *("--rec", faces, "--models-root", models, "--embedding-size", 16, "--frequent", 1),
        *("--max-update", 4, "--save-interval", 2, "--keep", 9, "--batch-size", 4),
        *("--val-targets", "unseen", "--verbose", 100, "--loss", "adaface"),
        *("--network", "tiny", *options),
    ]


def train_faces(faces, models, *options) -> str:
    return trained(train, *settings(faces, models, *options))


def test_a_run_that_stops_and_goes_on_is_the_same_bit_for_bit(faces, whole, tmp_path):
    copy = shutil.copytree(whole, tmp_path / "copy")
    last = "checkpoints/update-00000004"
    shutil.rmtree(copy / last)
    rest = train_faces(faces, copy)
    assert f"resumed at update 2 from {copy}/checkpoints/update-" in rest
    assert "update 2/" not in rest
    losses = metrics(whole, "loss")
    assert len(losses) == 4 and metrics(copy, "loss") == [*losses, *losses[2:]]
    first, second = Checkpoint(whole / last), Checkpoint(copy / last)
    assert first.manifest.files == second.manifest.files, "with their checksums"
    assert first.manifest.values == second.manifest.values


def test_a_finished_run_trains_nothing_and_a_longer_goes_on(faces, models):
    (models / "model-0000.params").unlink()
    again = train_faces(faces, models)
    assert "update 4 of 4 is finished already: nothing to train" in again
    assert "loss" not in again and (models / "model-0000.params").exists()
    longer = train_faces(faces, models, "--max-update", 5, "--lr", 0.01)
    assert "update 5/5" in longer and "update 4/5" not in longer
    assert "--lr was 0.1 and is 0.01" in longer


def test_training_that_diverges(faces, tmp_path):
    words = settings(faces, tmp_path, "--lr", 1e30, "--save-interval", 1)
    result = run_alone(train, *words)
    assert_one_line(result, "update 2: ", "last good checkpoint")
    assert os.listdir(tmp_path / "checkpoints") == ["update-00000001"]
