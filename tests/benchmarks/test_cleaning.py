"""What is planted, and what is counted of what the command finds; embeddings are drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from benchmarks import cleaning, measure
from benchmarks.cleaning import Faces, Found, Planting
from tests.data.clean.clusters import people


def png(number: int) -> bytes:
    rgb = np.random.default_rng(number).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    return cv2.imencode(".png", rgb)[1].tobytes()


@pytest.fixture
def faces() -> Faces:
    rows, labels = people([6] * 40 + [1] * 5)
    return Faces([png(number) for number in range(len(labels))], labels, rows)


@pytest.mark.parametrize("planting", cleaning.PLANTINGS)
def test_labels_are_planted(faces: Faces, planting: Planting) -> None:
    counts = np.bincount(faces.labels)
    planted = cleaning.plant(faces.labels, planting, seed=1)
    wrong = np.flatnonzero(planted != faces.labels)
    assert len(wrong) == round(0.05 * np.sum(counts[faces.labels] >= planting.least))
    assert (counts[faces.labels[wrong]] >= planting.least).all()
    assert (counts[planted[wrong]] >= planting.into).all()
    assert (planted == cleaning.plant(faces.labels, planting, seed=1)).all()
    assert (planted != cleaning.plant(faces.labels, planting, seed=2)).any()


def test_what_is_found_is_counted(faces: Faces, tmp_path: Path) -> None:
    labels = faces.labels.copy()
    # Found and moved right; found, of nobody's class.
    labels[[0, 7]], labels[240] = 30, 3
    found = cleaning.find_planted(faces, labels, tmp_path / "found")
    assert found == Found(planted=3, recall=1.0, precision=1.0, right=1.0)
    # Here the labels are right, and the images were exchanged: what was not planted is a mistake.
    rows = faces.rows.copy()
    rows[[0, 7]] = rows[[7, 0]]
    found = cleaning.find_planted(faces._replace(rows=rows), labels, tmp_path / "exchanged")
    assert found.planted == 3 and found.recall == 1.0 and found.right < 1.0


def test_a_class_that_is_gone_has_no_number(faces: Faces, tmp_path: Path) -> None:
    labels = faces.labels.copy()
    labels[240], labels[0] = 5, 20
    found = cleaning.find_planted(faces, labels, tmp_path / "gone")
    assert found == Found(planted=2, recall=1.0, precision=1.0, right=1.0)


def test_the_report(
    faces: Faces,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def find(_: Faces, planted: Any, place: Path) -> Found:
        seed = int(place.name[-1])
        return Found(int(np.sum(planted != faces.labels)), 0.9 + 0.01 * seed, 0.8, 1.0)

    monkeypatch.setattr(cleaning, "embedded", lambda *_: faces)
    monkeypatch.setattr(cleaning, "find_planted", find)
    monkeypatch.setattr(measure, "machine", lambda: "a machine")
    rows = tmp_path / "rows.json"
    words = ["--faces", "FACES", "--model", "m,0", "--seeds", "2", "--json", str(rows)]
    cleaning.main(words)
    said = capsys.readouterr().out
    assert "245 images of 45 people, of whom 5 have one\nimage; 5%" in said
    span = "0.900 to 0.910 | 0.800 to 0.800 | 1.000 to 1.000"
    assert f"| 2 images or more, any class | 12 | {span} |" in said
    assert f"| 3 images or more, into classes of 3 or more | 12 | {span} |" in said
    assert f"| any number, any class | 12 | {span} |" in said
    assert json.loads(rows.read_text())[0]["value"] == pytest.approx(0.905)
