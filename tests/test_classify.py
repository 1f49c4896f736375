"""The classification program as its users start it."""

from __future__ import annotations

import json
import os
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
from tests.support.job import Job
from tests.support.launch import clean_environment
from tests.support.locks import holder
from training.update.classify_step import ClassifyStep

ROOT = Path(__file__).resolve().parents[1]
# LeNet on small drawn images: seconds, of which the imports take most.
SMALL = ["--dataset", "synthetic", "--image-size", 16, "--num-images", 512, "--batch-size", 32]
SHORT = ["--model", "LeNet", "--warmup-epochs", 0]


def classify(*options):
    return run_alone(program, *options)


def trained(*options):
    result = classify(*options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def horovodrun(ranks, *options):
    launcher = Path(sys.executable).with_name("horovodrun")
    words = (
        *(launcher, "--gloo", "-np", ranks, "-H", f"localhost:{ranks}"),
        *(sys.executable, "classify.py", *options),
    )
    result = subprocess.run(
        [str(word) for word in words],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def records(models: Path) -> list[dict]:
    return [json.loads(line) for line in (models / "metrics.jsonl").read_text().splitlines()]


def validations(models: Path, field: str) -> list:
    found = [record for record in records(models) if record.get("target") == "validation"]
    return [record[field] for record in found]


def rates_of(models: Path) -> dict[int, float]:
    return {record["update"]: record["lr"] for record in records(models) if "lr" in record}


def assert_one_line(result, *parts):
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr, result.stderr
    for part in parts:
        assert part in result.stderr


@pytest.mark.parametrize(
    ("dataset", "files", "parts"),
    [
        ("mnist", {}, ["train-images-idx3-ubyte", "MNIST Database"]),
        (
            "mnist",
            {
                "train-images-idx3-ubyte": np.array([0x0803, 60_000, 28, 28], ">u4").tobytes(),
                "train-labels-idx1-ubyte": b"",
            },
            ["train-images-idx3-ubyte", "than the 47040016", "copy it again"],
        ),
        (
            "cifar10",
            {
                "data_batch_1.bin": bytes(3073 * 99), "test_batch.bin": b"",
                **{f"data_batch_{number}.bin": b"" for number in range(2, 6)},
            },
            ["data_batch_1.bin", "30730000"],
        ),
    ],
    ids=["missing", "idx", "cifar"],
)  # fmt: skip
def test_missing_and_damaged_files_are_one_line(dataset, files, parts, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    result = classify("--dataset", dataset, "--data-dir", tmp_path, "--models-root", tmp_path)
    assert_one_line(result, *parts)


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
        *("--dataset", "imagenet", "--rec-train", folder / "train.rec", *SHORT),
        *("--rec-val", folder / "val.rec", "--image-size", 32, "--models-root", folder / "models"),
        *("--batch-size", 8, "--epochs", 2, "--lr", 0.001),
    ]


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


@pytest.mark.thorough
@pytest.mark.launcher
def test_ranks_stay_in_step_over_broken_records(tmp_path):
    """All broken validation images are those of rank 1, whose share is half of them."""
    result = horovodrun(2, *write_set(tmp_path, broken=range(1, 24, 4)))
    assert validations(tmp_path / "models", "total") == [18, 18]
    assert result.stdout.count("6 of 24 images to validate on cannot be read") == 2


def test_folders_that_are_no_classes_are_left_out(tmp_path):
    for part in ("train", "val"):
        for name in ("a", "b", "c", ".ipynb_checkpoints", "__MACOSX"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(4):
                pixels = np.full((12, 12, 3), 20 * number + ord(name[0]), np.uint8)
                cv2.imwrite(str(tmp_path / part / name / f"{number}.png"), pixels)
        (tmp_path / part / "empty").mkdir()
    options = ["--dataset", "imagenet", "--data-dir", tmp_path, *SHORT, "--image-size", 16]
    models = tmp_path / "models"
    result = trained(*options, "--batch-size", 4, "--epochs", 1, "--models-root", models)
    network = mx.nd.load(str(models / "model-0000.params"))
    assert network["arg:fc_output_bias"].shape == (3,)
    for part in ("train", "val"):
        left_out = f"{tmp_path}/{part}: left out folders "
        assert f"{left_out}that programs make for themselves: 2 (" in result.stdout
        assert f"{left_out}without images: 1 (empty)" in result.stdout


@pytest.mark.launcher
def test_three_ranks_count_every_validation_image_once(tmp_path):
    options = [*SMALL, "--epochs", 2, "--models-root", tmp_path, "--warmup-epochs", 0.5]
    horovodrun(3, *options, "--label-smoothing", 0.1, "--mixup", 0.2)
    assert validations(tmp_path, "total") == [102, 102]
    assert json.loads((tmp_path / "config.json").read_text())["epochs"] == 2


@pytest.mark.thorough
@pytest.mark.launcher
def test_two_ranks_go_on_where_two_others_ended(tmp_path):
    """Right epoch, best accuracy, learning rate; the gradients travel in float16."""
    wire = ["--fp16-allreduce", "--gradient-predivide-factor", 2.0]
    options = [*SMALL, *wire, "--models-root", tmp_path, "--lr-schedule", "poly"]
    horovodrun(2, *options, "--epochs", 1)
    (before,) = validations(tmp_path, "best")
    second = horovodrun(2, *options, "--epochs", 2, "--resume", "--lr=0.001")
    assert "resumed at update 8" in second.stdout and "--lr was 0.01 and is 0.001" in second.stdout
    assert validations(tmp_path, "total") == [102, 102]
    assert validations(tmp_path, "epoch") == [1, 2] and validations(tmp_path, "best")[1] >= before
    # Two ranks, and the last of sixteen updates: 1 / 16 of the way is left.
    assert rates_of(tmp_path)[16] == pytest.approx(2 * 0.001 * (1 / 16) ** 2)
    assert np.isfinite(validations(tmp_path, "loss")).all()


class Killed(Exception):
    """A run ends here, as by a signal."""


def test_the_tutorials_resume_trains_the_schedule_again(tmp_path, monkeypatch):
    """And goes on with it where it was interrupted; 16 updates in an epoch."""
    options = [*SMALL, "--epochs", 2, "--models-root", tmp_path, "--frequent", 1]
    again = [*options, "--resume", "--lr=0.001"]
    trained(*options)
    assert validations(tmp_path, "total") == [102, 102]
    assert validations(tmp_path, "best")[-1] > 0.7
    # What it exports classifies.
    for name in ("model", "model-best"):
        files = (tmp_path / f"{name}-symbol.json", tmp_path / f"{name}-0000.params")
        network = mx.gluon.SymbolBlock.imports(str(files[0]), ["data"], str(files[1]))
        assert network(mx.nd.zeros((1, 3, 16, 16))).shape == (1, 10)
    best = mx.nd.load(str(tmp_path / "model-best-0000.params"))
    make_update, started = ClassifyStep.__call__, []

    def until_epoch_4(step, batch, update, lr):
        if update == 32:
            parameters = step.classifier.parameters
            started.append({name: parameters[name].data().copy() for name in parameters})
            memory = step._optimizer.export_state(update).arrays.values()
            assert memory and not any(stored.array.any() for stored in memory)
        if update == 50:
            raise Killed
        return make_update(step, batch, update, lr)

    monkeypatch.setattr(ClassifyStep, "__call__", until_epoch_4)
    with pytest.raises(Killed):
        classify(*again)
    for name, value in started[0].items():
        np.testing.assert_array_equal(value.asnumpy(), best[f"arg:{name}"].asnumpy())
    monkeypatch.undo()
    second = trained(*again).stdout
    assert "resumed at update 48 from" in second and "again" not in second
    assert validations(tmp_path, "epoch") == [1, 2, 3, 4]
    accuracies = validations(tmp_path, "best")
    assert accuracies == sorted(accuracies)
    # Half a cosine from the new rate to 0.
    expected = [0.0005 * (1 + np.cos(np.pi * update / 32)) for update in range(32)]
    rates = rates_of(tmp_path)
    assert [rates[update] for update in range(33, 65)] == pytest.approx(expected)
    third = trained(*again).stdout
    assert "update 64 of 64 is finished already: nothing to train" in third


@pytest.mark.thorough
@pytest.mark.launcher
def test_the_tutorials_resume_on_another_number_of_ranks(tmp_path):
    options = [*SMALL, "--epochs", 1, "--models-root", tmp_path, "--frequent", 1]
    trained(*options)
    horovodrun(2, *options, "-r", "--lr=0.001")
    assert validations(tmp_path, "epoch") == [1, 2]
    # Eight updates of twice as many images, at twice the rate.
    expected = [0.001 * (1 + np.cos(np.pi * update / 8)) for update in range(8)]
    rates = rates_of(tmp_path)
    assert [rates[update] for update in range(17, 25)] == pytest.approx(expected)


@pytest.mark.launcher
def test_one_rank_that_is_told_ends_all_with_a_checkpoint(tmp_path):
    options = [*SMALL, "--epochs", 10_000, "--frequent", 1, "--save-frequency", 0]
    with Job("--gloo", 2, tmp_path, *options, program="classify.py") as job:
        job.wait_until(lambda: "update 3/" in job.log(0))
        os.kill(job.processes()[1], signal.SIGTERM)
        assert job.wait(60) != 0
        ends = [
            line.split("told to end:")[1]
            for rank in (0, 1)
            for line in job.log(rank).splitlines()
            if "told to end:" in line
        ]
    assert len(ends) == 2 and ends[0] == ends[1], job.said()
    update = int(ends[0].split("after update")[1].split()[0])
    (saved,) = (tmp_path / "checkpoints").glob("update-*")
    assert saved.name == f"update-{update:08d}"


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
