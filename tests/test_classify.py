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
from data.records.recordio import encode
from runtime.mxnet import mx
from tests.support.alone import run_alone
from tests.support.launch import ROOT, clean_environment, finish, ranks
from tests.support.locks import holder
from training.checkpoint.reader import Checkpoint
from training.update.classify_step import ClassifyStep

# LeNet on small drawn images: seconds, of which the imports take most.
SMALL = ["--dataset", "synthetic", "--image-size", 16, "--num-images", 512, "--batch-size", 32]


def classify(*options):
    return run_alone(program, *options)


def trained(*options):
    result = classify(*options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def horovodrun(number, *options):
    return finish(*ranks("--gloo", number), sys.executable, "classify.py", *options)


def records(models: Path) -> list[dict]:
    return [json.loads(line) for line in (models / "metrics.jsonl").read_text().splitlines()]


def validations(models: Path, field: str) -> list:
    found = [record for record in records(models) if record.get("target") == "validation"]
    return [record[field] for record in found]


def assert_one_line(result, *parts):
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr, result.stderr
    for part in parts:
        assert part in result.stderr


def write_set(folder, broken=()):
    """Write two record files of three colors, 48 and 24 images, some of them broken."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 48), ("val", 24)):
        index, size = [], 0
        with (folder / f"{name}.rec").open("wb") as file:
            for key in range(count):
                pixels = rng.integers(0, 60, (40, 40, 3), np.uint8)
                pixels[..., key % 3] += 180
                payload = cv2.imencode(".jpg", pixels)[1].tobytes()
                index.append(f"{key}\t{size}\n")
                payload = payload[:200] if key in broken else payload
                size += file.write(encode((float(key % 3),), key, payload))
        (folder / f"{name}.idx").write_text("".join(index))
    return [
        *("--dataset", "imagenet", "--rec-train", folder / "train.rec"),
        *("--rec-val", folder / "val.rec", "--image-size", 32, "--models-root", folder / "models"),
        *("--batch-size", 8, "--epochs", 2, "--lr", 0.001, "--model", "LeNet"),
        *("--warmup-epochs", 0),
    ]


def test_missing_data_is_one_line_with_the_files(tmp_path):
    result = classify("--dataset", "mnist", "--data-dir", "/nowhere", "--models-root", tmp_path)
    assert_one_line(result, "/nowhere/train-images-idx3-ubyte", "MNIST Database")


def test_broken_records_are_skipped_and_named(tmp_path):
    options = write_set(tmp_path, broken=(0, 7, 13))
    said = trained(*options).stdout
    for name in ("train", "val"):
        for key in (0, 7, 13):
            line = f"skipped a broken record: {tmp_path}/{name}.rec: record {key}: the image cannot"
            assert said.count(line) == 1, said
    assert validations(tmp_path / "models", "total") == [21, 21]
    assert said.count("3 of 24 images to validate on cannot be read, and do not count") == 2
    few = classify(*options, "--resume", "never", "--max-bad-records", 2)
    assert_one_line(few, "3 broken records, more than the 2 of --max-bad-records; the last is")


@pytest.mark.launcher
def test_three_ranks_count_every_validation_image_once(tmp_path):
    """All broken validation images are those of rank 1, whose share is a third of them."""
    options = write_set(tmp_path, broken=range(1, 24, 6))
    wire = ("--fp16-allreduce", "--gradient-predivide-factor", 2.0)
    result = horovodrun(3, *options, *wire, "--label-smoothing", 0.1, "--mixup", 0.2)
    models = tmp_path / "models"
    assert validations(models, "total") == [20, 20]
    assert result.stdout.count("4 of 24 images to validate on cannot be read") == 2
    assert json.loads((models / "config.json").read_text())["epochs"] == 2


def test_momentum_goes_on(tmp_path):
    """Where the learning rate has become nothing, weights move by what momentum is left."""
    options = ["--dataset", "synthetic", "--image-size", 16, "--num-images", 64, "--batch-size", 32,
               "--wd", 0, "--lr-schedule", "poly", "--models-root", tmp_path]  # fmt: skip
    trained(*options, "--epochs", 1)
    trained(*options, "--epochs", 2, "--resume", "--lr=1e-30")
    before, after = (Checkpoint(tmp_path / f"checkpoints/update-{update:08d}") for update in (2, 4))
    for name in ("conv1_weight", "fc1_weight"):
        weights = before.replicated(f"classifier/{name}"), after.replicated(f"classifier/{name}")
        momentum = before.replicated(f"optimizer/{name}.0")
        assert np.abs(momentum).max() > 0
        np.testing.assert_allclose(
            weights[1] - weights[0], (0.9 + 0.9**2) * momentum, rtol=1e-3, atol=1e-7
        )
    others = classify(*options, "--epochs", 3, "--seed", 2)
    assert_one_line(others, "was trained on other images: 64 images there, 64 here", "--resume any")


@pytest.mark.thorough
def test_the_tutorials_resume_trains_the_schedule_again(tmp_path, monkeypatch):
    """From the best model on, with an optimizer that remembers nothing; 16 updates in an epoch."""
    options = [*SMALL, "--epochs", 2, "--models-root", tmp_path, "--frequent", 1]
    again = [*options, "--resume", "--lr=0.001"]
    trained(*options)
    assert validations(tmp_path, "best")[-1] > 0.7
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
    trained(*again)
    for name, value in started[0].items():
        np.testing.assert_array_equal(value.asnumpy(), best[f"arg:{name}"].asnumpy())
    assert validations(tmp_path, "epoch") == [1, 2, 3, 4]
    accuracies = validations(tmp_path, "best")
    assert accuracies == sorted(accuracies)
    # Half a cosine from the new rate to 0.
    expected = [0.0005 * (1 + np.cos(np.pi * update / 32)) for update in range(32)]
    rates = {one["update"]: one["lr"] for one in records(tmp_path) if "lr" in one}
    assert [rates[update] for update in range(33, 65)] == pytest.approx(expected)
    assert "update 64 of 64 is finished already: nothing to train" in trained(*again).stdout


def test_the_status_is_that_of_the_signal(tmp_path):
    options = [*SMALL, "--epochs", 10_000, "--frequent", 1, "--models-root", tmp_path]
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
