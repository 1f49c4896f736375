"""The classification program as its users start it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

import classify as program
from runtime.mxnet import mx
from tests.support.alone import assert_one_line, metrics, run_alone, trained
from tests.support.foreign_records import im2rec, write_records
from tests.support.job import holder
from tests.support.launch import ROOT, clean_environment, finish, ranks
from training.checkpoint.reader import Checkpoint
from training.update.classify_step import ClassifyStep

# LeNet on small drawn images: seconds, of which the imports take most.
SMALL = ("--dataset", "synthetic", "--image-size", 16, "--batch-size", 32, "--num-images")
OF = {"target": "validation"}


def write_set(folder: Path, broken=()):
    """Write two record files of three colors, 48 and 24 images, some of them broken."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 48), ("val", 24)):
        keys, labels = np.arange(count), np.arange(count) % 3
        pixels = rng.integers(0, 60, (count, 40, 40, 3), np.uint8)
        pixels[keys, :, :, labels] += 180
        encoded = [bytes(cv2.imencode(".jpg", image)[1]) for image in pixels]
        payloads = [one[:200] if key in broken else one for key, one in enumerate(encoded)]
        write_records(folder / name, im2rec(labels.tolist(), payloads, keys.tolist()))
    return [
        *("--dataset", "imagenet", "--rec-train", folder / "train/train.rec"),
        *("--rec-val", folder / "val/train.rec", "--models-root", folder / "models"),
        *("--image-size", 32, "--batch-size", 8, "--epochs", 2, "--lr", 0.001),
        *("--model", "LeNet", "--warmup-epochs", 0),
    ]


def test_missing_data_is_one_line_with_the_files(tmp_path):
    words = ("--dataset", "mnist", "--data-dir", "/nowhere", "--models-root", tmp_path)
    result = run_alone(program, *words)
    assert_one_line(result, "/nowhere/train-images-idx3-ubyte", "MNIST Database")
    assert result.stderr.count("\n") == 1


def test_broken_records_are_skipped_and_named(tmp_path):
    options = write_set(tmp_path, broken=(0, 7, 13))
    said = trained(program, *options)
    for name in ("train", "val"):
        for key in (0, 7, 13):
            line = f"{tmp_path}/{name}/train.rec: record {key}: the image cannot"
            assert said.count(f"skipped a broken record: {line}") == 1, said
    assert metrics(tmp_path / "models", "total", **OF) == [21, 21]
    assert said.count("3 of 24 images to validate on cannot be read, and do not count") == 2
    few = run_alone(program, *options, "--resume", "never", "--max-bad-records", 2)
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


def test_momentum_goes_on(tmp_path):
    """Where the learning rate has become nothing, weights move by what momentum is left."""
    options = (*SMALL, 64, "--wd", 0, "--lr-schedule", "poly", "--models-root", tmp_path)
    trained(program, *options, "--epochs", 1)
    trained(program, *options, "--epochs", 2, "--resume", "--lr=1e-30")
    before, after = (Checkpoint(tmp_path / f"checkpoints/update-{update:08d}") for update in (2, 4))
    for name in ("conv1_weight", "fc1_weight"):
        weights = before.replicated(f"classifier/{name}"), after.replicated(f"classifier/{name}")
        momentum = before.replicated(f"optimizer/{name}.0")
        assert np.abs(momentum).max() > 0
        np.testing.assert_allclose(
            weights[1] - weights[0], (0.9 + 0.9**2) * momentum, rtol=1e-3, atol=1e-7
        )
    others = run_alone(program, *options, "--epochs", 3, "--seed", 2)
    assert_one_line(others, "was trained on other images: 64 images there, 64 here", "--resume any")


@pytest.mark.thorough
def test_the_tutorials_resume_trains_the_schedule_again(tmp_path, monkeypatch):
    """From the best model on, with an optimizer that remembers nothing; 16 updates in an epoch."""
    options = (*SMALL, 512, "--epochs", 2, "--models-root", tmp_path, "--frequent", 1)
    again = (*options, "--resume", "--lr=0.001")
    trained(program, *options)
    assert metrics(tmp_path, "best", **OF)[-1] > 0.7
    # What it exports classifies.
    files = [str(tmp_path / f"model-best-{end}") for end in ("symbol.json", "0000.params")]
    network = mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    assert network(mx.nd.zeros((1, 3, 16, 16))).shape == (1, 10)
    best, make_update, started = mx.nd.load(files[1]), ClassifyStep.__call__, []

    def noted(step, batch, update, lr):
        if update == 32:
            parameters = step.classifier.parameters
            started.append({name: parameters[name].data().copy() for name in parameters})
            memory = step._optimizer.export_state(update).arrays.values()
            assert memory and not any(stored.array.any() for stored in memory)
        return make_update(step, batch, update, lr)

    monkeypatch.setattr(ClassifyStep, "__call__", noted)
    trained(program, *again)
    for name, value in started[0].items():
        np.testing.assert_array_equal(value.asnumpy(), best[f"arg:{name}"].asnumpy())
    assert metrics(tmp_path, "epoch", **OF) == [1, 2, 3, 4]
    accuracies = metrics(tmp_path, "best", **OF)
    assert accuracies == sorted(accuracies)
    # Half a cosine from the new rate to 0, after the 32 updates of the first run.
    expected = [0.0005 * (1 + np.cos(np.pi * update / 32)) for update in range(32)]
    assert metrics(tmp_path, "lr")[32:] == pytest.approx(expected)
    said = trained(program, *again)
    assert "update 64 of 64 is finished already: nothing to train" in said


def test_the_status_is_that_of_the_signal(tmp_path):
    options = (*SMALL, 512, "--epochs", 10_000, "--frequent", 1, "--models-root", tmp_path)
    words = [sys.executable, "classify.py", *map(str, options)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True,
                          env=clean_environment()) as process:  # fmt: skip
        try:
            assert any("update 3/" in line for line in process.stdout or ())
            assert f"process {process.pid}, python" in holder(tmp_path)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert len(list((tmp_path / "checkpoints").glob("update-*"))) >= 1
