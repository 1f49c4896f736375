"""``train.py`` that stops and goes on, alone and under horovodrun: the same bytes at the end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import train as program
from data.drawn import face_set
from data.verification.bin_file import read_bin, write_bin
from tests.support.alone import run_alone
from tests.support.launch import clean_environment
from training.checkpoint.reader import Checkpoint

ROOT = Path(__file__).resolve().parents[2]
UPDATES, INTERVAL = 6, 2


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces") / "set"
    face_set.ensure(folder, identities=20, images_per_identity=6, image_size=(64, 64), seed=3)
    target = read_bin(folder / "unseen.bin")
    pairs = range(0, len(target.same), 100)
    images = [target.images[2 * pair + side] for pair in pairs for side in (0, 1)]
    write_bin(folder / "unseen.bin", images, [bool(target.same[pair]) for pair in pairs])
    return folder


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
def test_bit_for_bit(ranks: int, faces: Path, tmp_path: Path) -> None:
    whole = train(ranks, faces, tmp_path / "whole")
    assert "no checkpoint in" in whole and "starting anew" in whole
    # As it was after the first checkpoint.
    copy = Path(shutil.copytree(tmp_path / "whole", tmp_path / "copy"))
    for folder in (copy / "checkpoints").iterdir():
        if int(folder.name[-8:]) > INTERVAL:
            shutil.rmtree(folder)
    rest = train(ranks, faces, copy)
    assert f"resumed at update {INTERVAL} from {copy}/checkpoints/update-" in rest
    assert f"update {INTERVAL}/" not in rest
    found, again = (losses(models) for models in (tmp_path / "whole", copy))
    assert found == again and len(found) == UPDATES
    last = f"checkpoints/update-{UPDATES:08d}"
    first, second = Checkpoint(tmp_path / "whole" / last), Checkpoint(copy / last)
    assert first.manifest.files == second.manifest.files, "with their checksums"
    assert first.manifest.values == second.manifest.values


def test_a_finished_run_trains_nothing_and_a_longer_goes_on(faces: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    train_here(faces, models, "--max-update", 2)
    (models / "model-0000.params").unlink()
    again = train_here(faces, models, "--max-update", 2)
    assert "update 2 of 2 is finished already: nothing to train" in again.stdout
    assert "loss" not in again.stdout and (models / "model-0000.params").exists()
    longer = train_here(faces, models, "--max-update", 3, "--lr", 0.01)
    assert "update 3/3" in longer.stdout and "update 2/3" not in longer.stdout
    assert "--lr was 0.1 and is 0.01" in longer.stdout


@pytest.mark.launcher
def test_another_number_of_ranks(faces: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    train_here(faces, models, "--batch-size", 12, "--max-update", 2)
    many = train(2, faces, models, "--batch-size", 12, "--max-update", 3)
    assert "and re-cut for 2" in many
    assert "the global batch was 12 and is 24: going on at image 24 of epoch 0" in many
    one = train_here(faces, models, "--batch-size", 12, "--max-update", 4)
    assert "written by 2 ranks and re-cut for 1" in one.stdout


def test_a_folder_that_cannot_be_written(faces: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    result = train_here(faces, tmp_path, status=2)
    assert "checkpoints cannot be written" in result.stderr and "--keep 0" in result.stderr


def test_training_that_diverges(faces: Path, tmp_path: Path) -> None:
    result = train_here(faces, tmp_path, "--lr", 1e30, "--save-interval", 1, status=2)
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "the loss is" in lines[0] and "last good checkpoint" in lines[0]
    assert os.listdir(tmp_path / "checkpoints") == ["update-00000001"]
