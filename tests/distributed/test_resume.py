"""``train.py`` that stops and goes on, alone and under horovodrun: the same bytes at the end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import train as program
from data.drawn import face_set
from tests.support.alone import run_alone
from tests.support.launch import clean_environment
from training.checkpoint.reader import Checkpoint
from training.log.run_log import RunLog

ROOT = Path(__file__).resolve().parents[2]
UPDATES, INTERVAL = 4, 2


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces") / "set"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(face_set, "_VERIFICATION_PAIRS", 20)
        return face_set.ensure(
            folder, identities=20, images_per_identity=6, image_size=(64, 64), seed=3
        )


@pytest.fixture(scope="module", autouse=True)
def no_report() -> Iterator[None]:
    """A program of its own writes it; tests/test_train.py reads it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLog, "write_report", lambda log: None)
        yield


@pytest.fixture(scope="module")
def whole(faces: Path, no_report: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one rank."""
    models = tmp_path_factory.mktemp("whole") / "models"
    assert "starting anew" in train_here(faces, models).stdout
    return models


def settings(faces: Path, models: Path, *options: object) -> list[object]:
    return [
        *("--rec", faces, "--models-root", models, "--embedding-size", 16, "--frequent", 1),
        *("--max-update", UPDATES, "--save-interval", INTERVAL, "--keep", 9, "--batch-size", 4),
        *("--val-targets", "unseen", "--verbose", 100, "--loss", "adaface", *options),
    ]


def train_here(faces: Path, models: Path, *options: object, status: int = 0):
    """One rank, in this process."""
    result = run_alone(program, "--network", "tiny", *settings(faces, models, *options))
    assert result.returncode == status, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result


def train(ranks: int, faces: Path, models: Path, *options: object) -> str:
    """Several ranks, or one in this process; returns what they print."""
    if ranks == 1:
        return train_here(faces, models, *options).stdout
    launcher = Path(sys.executable).with_name("horovodrun")
    launch = [launcher, "--gloo", "-np", ranks, "-H", f"localhost:{ranks}", "bash", "config.sh"]
    # More ranks than two add in the order in which Horovod sends gradients together.
    variables = {"NETWORK": "tiny", **({"HOROVOD_FUSION_THRESHOLD": "0"} if ranks > 2 else {})}
    result = subprocess.run(
        [str(word) for word in (*launch, *settings(faces, models, *options))], cwd=ROOT,
        env={**clean_environment(), **variables}, capture_output=True, text=True, timeout=250,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def losses(models: Path) -> dict[int, float]:
    """The last report of each update."""
    records = map(json.loads, (models / "metrics.jsonl").read_text().splitlines())
    return {record["update"]: record["loss"] for record in records if "loss" in record}


@pytest.mark.parametrize(
    "ranks", [1, pytest.param(3, marks=[pytest.mark.launcher, pytest.mark.thorough])]
)
def test_bit_for_bit(ranks: int, faces: Path, whole: Path, tmp_path: Path) -> None:
    if ranks > 1:
        whole = tmp_path / "whole"
        train(ranks, faces, whole)
    # As it was after the first checkpoint.
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    last = f"checkpoints/update-{UPDATES:08d}"
    shutil.rmtree(copy / last)
    rest = train(ranks, faces, copy)
    assert f"resumed at update {INTERVAL} from {copy}/checkpoints/update-" in rest
    assert f"update {INTERVAL}/" not in rest
    assert losses(whole) == losses(copy) and len(losses(copy)) == UPDATES
    first, second = Checkpoint(whole / last), Checkpoint(copy / last)
    assert first.manifest.files == second.manifest.files, "with their checksums"
    assert first.manifest.values == second.manifest.values


def test_a_finished_run_trains_nothing_and_a_longer_goes_on(
    faces: Path, whole: Path, tmp_path: Path
) -> None:
    models = Path(shutil.copytree(whole, tmp_path / "models"))
    (models / "model-0000.params").unlink()
    again = train_here(faces, models)
    assert "update 4 of 4 is finished already: nothing to train" in again.stdout
    assert "loss" not in again.stdout and (models / "model-0000.params").exists()
    longer = train_here(faces, models, "--max-update", 5, "--lr", 0.01)
    assert "update 5/5" in longer.stdout and "update 4/5" not in longer.stdout
    assert "--lr was 0.1 and is 0.01" in longer.stdout


@pytest.mark.launcher
@pytest.mark.thorough
def test_another_number_of_ranks(faces: Path, whole: Path, tmp_path: Path) -> None:
    models = Path(shutil.copytree(whole, tmp_path / "models"))
    many = train(2, faces, models, "--batch-size", 6, "--max-update", 5)
    assert "and re-cut for 2" in many
    assert "the global batch was 4 and is 12: going on at image 16 of epoch 0" in many
    one = train_here(faces, models, "--batch-size", 12, "--max-update", 6)
    assert "written by 2 ranks and re-cut for 1" in one.stdout


def test_training_that_diverges(faces: Path, tmp_path: Path) -> None:
    result = train_here(faces, tmp_path, "--lr", 1e30, "--save-interval", 1, status=2)
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "the loss is" in lines[0] and "last good checkpoint" in lines[0]
    assert os.listdir(tmp_path / "checkpoints") == ["update-00000001"]
