from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.report import run_files
from runtime.errors import DataError
from tests.support import made_up_runs
from tests.support.made_up_runs import training_record, verification


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made_up_runs.write_faces(tmp_path / "run")


def saved(rows: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(rows, float))
    return file.getvalue()


def test_a_copy_of_the_folder_says_the_same(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "elsewhere" / "run"))
    shutil.rmtree(run)
    found = run_files.read(copy)
    assert found.name == "run" and found.config["loss"] == "arcface"
    assert [record["update"] for record in found.training] == list(range(20, 2001, 20))
    assert [record["update"] for record in found.targets["unseen"]] == [400, 800, 1200, 1600, 2000]
    assert found.scores["unseen"].shape == (made_up_runs.PAIRS, 2)
    assert found.samples is not None and len(found.parts) == 2


def test_of_updates_that_were_made_again_the_later_report_counts(tmp_path: Path) -> None:
    first = [training_record(update, loss=1.0) for update in (10, 20, 30, 40)]
    again = [training_record(update, loss=2.0) for update in (30, 40, 50)]
    first.insert(2, verification("lfw", 20, 0.5))
    first.append(verification("lfw", 40, 0.6))
    again.append(verification("lfw", 50, 0.7))
    # A run that began anew in the folder has nothing of the former.
    anew = [verification("lfw", 0, 0.5), training_record(15, 3.0)]
    for name, last, losses, accuracies in (
        ("a", again, {10: 1.0, 20: 1.0, 30: 2.0, 40: 2.0, 50: 2.0}, {20: 0.5, 50: 0.7}),
        ("b", anew, {15: 3.0}, {0: 0.5}),
    ):
        made_up_runs.write(tmp_path / name, [*first, *last], {})
        found = run_files.read(tmp_path / name)
        assert {one["update"]: one["loss"] for one in found.training} == losses
        assert {one["update"]: one["accuracy"] for one in found.targets["lfw"]} == accuracies


def test_what_is_not_there(run: Path, tmp_path: Path) -> None:
    """Files of the folder ``report``; and a last line may still be written."""
    found = run_files.read(made_up_runs.write_images(tmp_path / "images"))
    assert not found.scores and found.samples is None and not found.parts
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"time": 1.0, "upd')
    assert run_files.read(run).training[-1]["update"] == 2000
    with pytest.raises(DataError, match="no folder of a run: it has no metrics.jsonl; give the"):
        run_files.read(tmp_path)
    # Scores of one kind of pairs.
    (run / "report/scores-unseen.npy").write_bytes(saved([[1, 1]] * 4))
    assert not run_files.read(run).scores


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", b'{"update": 1}\nnonsense\n'),
        ("metrics.jsonl", b'{"update": -1}\n'),
        ("metrics.jsonl", b'{"loss": 1}\n'),
        ("metrics.jsonl", b"[" * 100_000 + b"\n"),
        ("config.json", b'{"rec": ' + b"[" * 900 + b"]" * 900 + b"}"),
        ("config.json", b"[]"),
        ("report/parts.jsonl", b'{"host": "a"}\n'),
        ("report/samples.jpg", b"<svg onload='alert(1)'/>"),
        ("report/scores-unseen.npy", b"nonsense"),
        ("report/scores-unseen.npy", saved([[0] * 3] * 4)),
        *(("report/scores-unseen.npy", saved([[0.5, 1], pair])) for pair in
          ([0.5, 0.5], [-2, 0], [np.nan, 0])),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named(run: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{Path(name).name} is damaged, .* or move it away"):
        run_files.read(run)


def test_names_of_sets_make_no_other_folders(run: Path) -> None:
    assert run_files.scores_file("../../x y") == "scores-..%2F..%2Fx%20y.npy"
    # No file can have this name, so there are no scores.
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(verification("a" * 300, 2000, 0.9)) + "\n")
    found = run_files.read(run)
    assert "a" * 300 in found.targets and [*found.scores] == ["unseen"]


def test_numbers_that_cannot_be_drawn_are_not_numbers() -> None:
    values = [1, 2.5, None, "3", True, 1e305, json.loads("NaN"), 10**400]
    found = run_files.column([{"loss": value} for value in values], "loss")
    assert found[:2].tolist() == [1, 2.5] and np.isnan(found[2:]).all()
