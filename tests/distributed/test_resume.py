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
    """Several ranks, or one in a process of its own; returns what they print."""
    launcher = Path(sys.executable).with_name("horovodrun")
    launch = [launcher, "--gloo", "-np", ranks, "-H", f"localhost:{ranks}", "bash", "config.sh"]
    alone = [sys.executable, "train.py", "--network", "tiny"]
    command = [*(launch if ranks > 1 else alone), *settings(faces, models, *options)]
    # More ranks than two add in the order in which Horovod sends gradients together.
    variables = {"NETWORK": "tiny", **({"HOROVOD_FUSION_THRESHOLD": "0"} if ranks > 2 else {})}
    result = subprocess.run(
        [str(word) for word in command], cwd=ROOT, env={**clean_environment(), **variables},
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def run(ranks: int, faces: Path, models: Path) -> str:
    """Several ranks, or one in this process; returns what they print."""
    return train(ranks, faces, models) if ranks > 1 else train_here(faces, models).stdout


def losses(models: Path) -> dict[int, float]:
    """The last report of each update."""
    lines = (models / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return {record["update"]: record["loss"] for record in records if "loss" in record}


def assert_equal(models: Path, others: Path) -> None:
    """All losses, and every array of every rank after the last update."""
    assert losses(models) == losses(others) and len(losses(models)) == UPDATES
    last = f"checkpoints/update-{UPDATES:08d}"
    first, second = Checkpoint(models / last), Checkpoint(others / last)
    assert first.manifest.files == second.manifest.files, "with their checksums"
    assert first.manifest.values == second.manifest.values


def resume_from(models: Path, copy: Path, update: int) -> Path:
    """A copy of a run as it was after ``update`` updates."""
    shutil.copytree(models, copy)
    for folder in (copy / "checkpoints").iterdir():
        if int(folder.name[-8:]) > update:
            shutil.rmtree(folder)
    return copy


@pytest.mark.parametrize(
    "ranks",
    [1, *(pytest.param(n, marks=[pytest.mark.launcher, pytest.mark.thorough]) for n in (2, 3))],
)
def test_bit_for_bit(ranks: int, faces: Path, tmp_path: Path) -> None:
    whole = run(ranks, faces, tmp_path / "whole")
    assert "no checkpoint in" in whole and "starting anew" in whole
    copy = resume_from(tmp_path / "whole", tmp_path / "copy", INTERVAL)
    rest = run(ranks, faces, copy)
    assert f"resumed at update {INTERVAL} from {copy}/checkpoints/update-" in rest
    assert f"update {INTERVAL}/" not in rest
    assert_equal(tmp_path / "whole", copy)


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


@pytest.mark.thorough
@pytest.mark.launcher
def test_the_best_model_after_a_kill(faces: Path, tmp_path: Path) -> None:
    """The worst moment: a better model has just been written, and no checkpoint knows of it."""
    options = ("--verbose", 2, "--lr", 0.02)
    whole, copy = tmp_path / "whole", tmp_path / "copy"
    said = train(1, faces, whole, *options)
    accuracies = verified(whole)
    best = max(accuracies, key=lambda update: (accuracies[update], -update))
    assert f"update {best}: model saved in {whole}/model-best-*" in said
    train(1, faces, resume_from(whole, copy, INTERVAL), *options)
    for name in ("model-best-symbol.json", "model-best-0000.params"):
        assert (copy / name).read_bytes() == (whole / name).read_bytes(), name
    # Two ranks know of it, too.
    train(2, faces, copy, *options, "--batch-size", 2, "--max-update", UPDATES + 1)
    is_kept = (copy / name).read_bytes() == (whole / name).read_bytes()
    assert is_kept == (verified(copy)[UPDATES + 1] <= accuracies[best])


def verified(models: Path) -> dict[int, float]:
    """The accuracy after each update that was verified."""
    records = map(json.loads, (models / "metrics.jsonl").read_text().splitlines())
    return {one["update"]: one["accuracy"] for one in records if one.get("target") == "unseen"}


@pytest.mark.launcher
@pytest.mark.parametrize("more", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_another_number_of_ranks(more: int, faces: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    train_here(faces, models, "--batch-size", 12, "--max-update", 2)
    many = train(more, faces, models, "--batch-size", 24 // more, "--max-update", 3)
    assert f"and re-cut for {more}" in many
    assert "the global batch was 12 and is 24: going on at image 24 of epoch 0" in many
    one = train_here(faces, models, "--batch-size", 12, "--max-update", 4)
    assert f"written by {more} ranks and re-cut for 1" in one.stdout


def test_a_folder_that_cannot_be_written(faces: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    result = train_here(faces, tmp_path, status=2)
    assert "checkpoints cannot be written" in result.stderr and "--keep 0" in result.stderr


def test_training_that_diverges(faces: Path, tmp_path: Path) -> None:
    result = train_here(faces, tmp_path, "--lr", 1e30, "--save-interval", 1, status=2)
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "the loss is" in lines[0] and "last good checkpoint" in lines[0]
    assert os.listdir(tmp_path / "checkpoints") == ["update-00000001"]
