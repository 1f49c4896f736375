"""``train.py`` that stops and goes on, alone and under horovodrun: the same bytes at the end."""

import os
import shutil
from pathlib import Path

import pytest

import train as program
from data.drawn import face_set
from tests.support import launch
from tests.support.alone import assert_one_line, metrics, run_alone, trained
from training.checkpoint.reader import Checkpoint
from training.log.run_log import RunLog


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces") / "set"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(face_set, "_VERIFICATION_PAIRS", 20)
        return face_set.ensure(folder, face_set.DrawnFaces(20, 6, (64, 64), seed=3))


@pytest.fixture(scope="module", autouse=True)
def no_report():
    """A program of its own writes it; tests/test_programs.py reads it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLog, "write_report", lambda log: None)
        yield


@pytest.fixture(scope="module")
def whole(faces: Path, no_report: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("whole") / "models"
    assert "starting anew" in train(1, faces, models)
    return models


@pytest.fixture
def models(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "models"))


def settings(faces: Path, models: Path, *options: object) -> list[object]:
    return [
        *("--rec", faces, "--models-root", models, "--embedding-size", 16, "--frequent", 1),
        *("--max-update", 4, "--save-interval", 2, "--keep", 9, "--batch-size", 4),
        *("--val-targets", "unseen", "--verbose", 100, "--loss", "adaface", *options),
    ]


def train(ranks: int, faces: Path, models: Path, *options: object) -> str:
    """Several ranks, or one in this process; returns what they print."""
    words = settings(faces, models, *options)
    if ranks == 1:
        return trained(program, "--network", "tiny", *words)
    command = ("bash", "config.sh", *words)
    return launch.finish(*launch.ranks("--gloo", ranks), *command, NETWORK="tiny").stdout


def test_bit_for_bit(faces: Path, whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    last = "checkpoints/update-00000004"
    shutil.rmtree(copy / last)
    rest = train(1, faces, copy)
    assert f"resumed at update 2 from {copy}/checkpoints/update-" in rest
    assert "update 2/" not in rest
    losses = metrics(whole, "loss")
    assert len(losses) == 4 and metrics(copy, "loss") == [*losses, *losses[2:]]
    first, second = Checkpoint(whole / last), Checkpoint(copy / last)
    assert first.manifest.files == second.manifest.files, "with their checksums"
    assert first.manifest.values == second.manifest.values


def test_a_finished_run_trains_nothing_and_a_longer_goes_on(faces: Path, models: Path) -> None:
    (models / "model-0000.params").unlink()
    again = train(1, faces, models)
    assert "update 4 of 4 is finished already: nothing to train" in again
    assert "loss" not in again and (models / "model-0000.params").exists()
    longer = train(1, faces, models, "--max-update", 5, "--lr", 0.01)
    assert "update 5/5" in longer and "update 4/5" not in longer
    assert "--lr was 0.1 and is 0.01" in longer


@pytest.mark.launcher
@pytest.mark.thorough
def test_another_number_of_ranks(faces: Path, models: Path) -> None:
    many = train(2, faces, models, "--batch-size", 6, "--max-update", 5)
    assert "and re-cut for 2" in many
    assert "--batch-size was 4 and is 6" in many
    one = train(1, faces, models, "--batch-size", 12, "--max-update", 6)
    assert "written by 2 ranks and re-cut for 1" in one


def test_training_that_diverges(faces: Path, tmp_path: Path) -> None:
    words = settings(faces, tmp_path, "--lr", 1e30, "--save-interval", 1)
    result = run_alone(program, "--network", "tiny", *words)
    assert_one_line(result, "update 2: ", "last good checkpoint")
    assert os.listdir(tmp_path / "checkpoints") == ["update-00000001"]
