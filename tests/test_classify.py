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


def start(*command):
    return subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def classify(*options):
    return run_alone(program, *options)


def horovodrun(ranks, *options):
    launcher = Path(sys.executable).with_name("horovodrun")
    return start(
        *(launcher, "--gloo", "-np", ranks, "-H", f"localhost:{ranks}"),
        *(sys.executable, "classify.py", *options),
    )


def validations(models: Path) -> list[dict]:
    records = [json.loads(line) for line in (models / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record.get("target") == "validation"]


def assert_one_line(result, *parts):
    lines = [line for line in result.stderr.splitlines() if "error: " in line]
    assert result.returncode == 2, result.stdout + result.stderr
    assert len(lines) == 1 and "Traceback" not in result.stderr, result.stderr
    for part in parts:
        assert part in lines[0]


def test_a_wrong_model_is_one_line_with_the_remedy():
    options = ("--dataset", "synthetic", "--model", "ResNet19")
    assert_one_line(start(sys.executable, "classify.py", *options), "ResNet18")


def test_missing_data_is_one_line_with_the_files(tmp_path):
    result = classify("--dataset", "mnist", "--data-dir", "/nowhere", "--models-root", tmp_path)
    assert_one_line(result, "/nowhere/train-images-idx3-ubyte", "MNIST Database")


def test_a_truncated_idx_file_is_one_line(tmp_path):
    header = np.array([0x0803, 60_000, 28, 28], ">u4").tobytes()
    (tmp_path / "train-images-idx3-ubyte").write_bytes(header + bytes(1000))
    (tmp_path / "train-labels-idx1-ubyte").touch()
    result = classify("--dataset", "mnist", "--data-dir", tmp_path, "--models-root", tmp_path)
    assert_one_line(result, "train-images-idx3-ubyte", "than the 47040016", "copy it again")


def test_a_cifar_batch_of_the_wrong_length_is_one_line(tmp_path):
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3073 * 99))
    for number in range(2, 6):
        (tmp_path / f"data_batch_{number}.bin").touch()
    (tmp_path / "test_batch.bin").touch()
    result = classify("--dataset", "cifar10", "--data-dir", tmp_path, "--models-root", tmp_path)
    assert_one_line(result, "data_batch_1.bin", "30730000")


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
        *("--rec-val", folder / "val.rec", "--model", "LeNet", "--image-size", 32),
        *("--batch-size", 8, "--epochs", 2, "--warmup-epochs", 0, "--lr", 0.001),
    ]


def test_broken_records_are_skipped_and_named(tmp_path):
    options = [*write_set(tmp_path, broken=(0, 7, 13)), "--models-root", tmp_path / "models"]
    result = classify(*options)
    assert result.returncode == 0, result.stdout + result.stderr
    for name in ("train", "val"):
        for key in (0, 7, 13):
            line = f"skipped a broken record: {tmp_path}/{name}.rec: record {key}: the image cannot"
            assert result.stdout.count(line) == 1, result.stdout
    assert [record["total"] for record in validations(tmp_path / "models")] == [21, 21]
    line = "3 of 24 images to validate on cannot be read, and do not count"
    assert result.stdout.count(line) == 2
    few = classify(*options, "--resume", "never", "--max-bad-records", 2)
    assert_one_line(few, "3 broken records, more than the 2 of --max-bad-records; the last is")


@pytest.mark.thorough
@pytest.mark.launcher
def test_ranks_stay_in_step_over_broken_records(tmp_path):
    """All broken validation images are those of rank 1, whose share is half of them."""
    broken = range(1, 24, 4)
    options = [*write_set(tmp_path, broken), "--models-root", tmp_path / "models"]
    result = horovodrun(2, *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert [record["total"] for record in validations(tmp_path / "models")] == [18, 18]
    assert result.stdout.count("6 of 24 images to validate on cannot be read") == 2


def test_folders_that_are_no_classes_are_left_out(tmp_path):
    for part in ("train", "val"):
        for name in ("a", "b", "c", ".ipynb_checkpoints", "__MACOSX"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(4):
                pixels = np.full((12, 12, 3), 20 * number + ord(name[0]), np.uint8)
                cv2.imwrite(str(tmp_path / part / name / f"{number}.png"), pixels)
        (tmp_path / part / "empty").mkdir()
    options = ["--dataset", "imagenet", "--data-dir", tmp_path, "--model", "LeNet"]
    small = ["--image-size", 16, "--batch-size", 4, "--epochs", 1, "--warmup-epochs", 0]
    result = classify(*options, *small, "--models-root", tmp_path / "models")
    assert result.returncode == 0, result.stdout + result.stderr
    network = mx.nd.load(str(tmp_path / "models/model-0000.params"))
    assert network["arg:fc_output_bias"].shape == (3,)
    for part in ("train", "val"):
        left_out = f"{tmp_path}/{part}: left out folders "
        assert f"{left_out}that programs make for themselves: 2 (" in result.stdout
        assert f"{left_out}without images: 1 (empty)" in result.stdout


def test_one_rank_learns_and_what_it_exports_classifies(tmp_path):
    result = classify(*SMALL, "--epochs", 2, "--models-root", tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    found = validations(tmp_path)
    assert [record["total"] for record in found] == [102, 102]
    assert found[-1]["best"] > 0.7
    for name in ("model", "model-best"):
        network = mx.gluon.SymbolBlock.imports(
            str(tmp_path / f"{name}-symbol.json"), ["data"], str(tmp_path / f"{name}-0000.params")
        )
        assert network(mx.nd.zeros((1, 3, 16, 16))).shape == (1, 10)
    assert json.loads((tmp_path / "config.json").read_text())["epochs"] == 2


@pytest.mark.launcher
def test_ranks_count_every_validation_image_once(tmp_path):
    """Three ranks; two are those of the next test."""
    result = horovodrun(
        3,
        *(*SMALL, "--epochs", 2, "--models-root", tmp_path, "--label-smoothing", 0.1),
        *("--mixup", 0.2, "--warmup-epochs", 0.5),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    found = validations(tmp_path)
    assert [record["total"] for record in found] == [102, 102]


@pytest.mark.thorough
@pytest.mark.launcher
def test_two_ranks_go_on_where_two_others_ended(tmp_path):
    """Right epoch, best accuracy, learning rate; the gradients travel in float16."""
    wire = ["--fp16-allreduce", "--gradient-predivide-factor", 2.0]
    options = [*SMALL, *wire, "--models-root", tmp_path, "--lr-schedule", "poly"]
    first = horovodrun(2, *options, "--epochs", 1)
    assert first.returncode == 0, first.stdout + first.stderr
    (before,) = validations(tmp_path)
    second = horovodrun(2, *options, "--epochs", 2, "--resume", "--lr=0.001")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "resumed at update 8" in second.stdout and "--lr was 0.01 and is 0.001" in second.stdout
    assert [record["total"] for record in validations(tmp_path)] == [102, 102]
    after = validations(tmp_path)[-1]
    assert after["epoch"] == 2 and after["best"] >= before["best"]
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rates = [record["lr"] for record in records if "lr" in record and record["update"] == 16]
    # Two ranks, and the last of sixteen updates: 1 / 16 of the way is left.
    assert rates == pytest.approx([2 * 0.001 * (1 / 16) ** 2])
    assert np.isfinite(after["loss"])


class Killed(Exception):
    """A run ends here, as by a signal."""


def rates_of(models: Path) -> dict[int, float]:
    records = [json.loads(line) for line in (models / "metrics.jsonl").read_text().splitlines()]
    return {record["update"]: record["lr"] for record in records if "lr" in record}


def test_the_tutorials_resume_trains_the_schedule_again(tmp_path, monkeypatch):
    """And goes on with it where it was interrupted; 16 updates in an epoch."""
    options = [*SMALL, "--epochs", 2, "--models-root", tmp_path, "--frequent", 1]
    again = [*options, "--resume", "--lr=0.001"]
    first = classify(*options)
    assert first.returncode == 0, first.stdout + first.stderr
    best = mx.nd.load(str(tmp_path / "model-best-0000.params"))
    make_update, started = ClassifyStep.__call__, []

    def until_epoch_4(step, batch, update, lr):
        if update == 32:
            parameters = step.classifier.parameters
            started.append({name: parameters[name].data().copy() for name in parameters})
            memory = dict(step._optimizer._updates.memory())
            assert memory and not any(array.asnumpy().any() for (array,) in memory.values())
        if update == 50:
            raise Killed
        return make_update(step, batch, update, lr)

    monkeypatch.setattr(ClassifyStep, "__call__", until_epoch_4)
    with pytest.raises(Killed):
        classify(*again)
    for name, value in started[0].items():
        np.testing.assert_array_equal(value.asnumpy(), best[f"arg:{name}"].asnumpy())
    monkeypatch.undo()
    second = classify(*again)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "resumed at update 48 from" in second.stdout and "again" not in second.stdout
    found = validations(tmp_path)
    assert [record["epoch"] for record in found] == [1, 2, 3, 4]
    assert [record["best"] for record in found] == sorted(record["best"] for record in found)
    # Half a cosine from the new rate to 0.
    expected = [0.0005 * (1 + np.cos(np.pi * update / 32)) for update in range(32)]
    rates = rates_of(tmp_path)
    assert [rates[update] for update in range(33, 65)] == pytest.approx(expected)
    third = classify(*again)
    assert "update 64 of 64 is finished already: nothing to train" in third.stdout
    assert third.returncode == 0


@pytest.mark.launcher
def test_the_tutorials_resume_on_another_number_of_ranks(tmp_path):
    options = [*SMALL, "--epochs", 1, "--models-root", tmp_path, "--frequent", 1]
    assert classify(*options).returncode == 0
    result = horovodrun(2, *options, "-r", "--lr=0.001")
    assert result.returncode == 0, result.stdout + result.stderr
    assert [record["epoch"] for record in validations(tmp_path)] == [1, 2]
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
    program = [sys.executable, "classify.py", *map(str, options)]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True,
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
