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


# Those of one image first: a class that is gone changes the numbers of those behind it.
COUNTS = [1] * 5 + [2] * 20 + [3] * 20 + [6] * 30
SINGLE, FIRST, SECOND, THIRD = 0, 5 + 40 + 60, 5 + 40 + 60 + 6, 5 + 40 + 60 + 12


@pytest.fixture
def faces() -> Faces:
    rows, labels = people(COUNTS)
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
    labels, rows = faces.labels.copy(), faces.rows.copy()
    last = labels[-1]
    # Three wrong labels, of which the third looks as it should.
    labels[[FIRST, SECOND, THIRD]] = last
    rows[THIRD] = rows[-1]
    # Nobody planted these: they are the faces of others.
    rows[[THIRD + 6, THIRD + 12]] = rows[[FIRST + 1, SECOND + 1]]
    found = cleaning.find_planted(faces._replace(rows=rows), labels, tmp_path / "found")
    assert tuple(found) == pytest.approx((3, 2 / 3, 0.5, 1.0))


def test_who_is_moved_to_the_wrong_class_is_counted(faces: Faces, tmp_path: Path) -> None:
    labels, rows = faces.labels.copy(), faces.rows.copy()
    labels[[FIRST, SECOND]] = labels[-1]
    # The first looks like somebody else again.
    rows[FIRST] = rows[THIRD]
    found = cleaning.find_planted(faces._replace(rows=rows), labels, tmp_path / "found")
    assert found == Found(2, 1.0, 1.0, 0.5)


def test_a_class_that_is_gone_has_no_number(faces: Faces, tmp_path: Path) -> None:
    labels = faces.labels.copy()
    labels[[SINGLE, FIRST]] = labels[-1]
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
    assert "285 images of 75 people, of whom 5 have one\nimage; 5%" in said
    span = "0.900 to 0.910 | 0.800 to 0.800 | 1.000 to 1.000"
    assert f"| 2 images or more, any class | 14 | {span} |" in said
    assert f"| 3 images or more, into classes of 3 or more | 12 | {span} |" in said
    assert f"| any number, any class | 14 | {span} |" in said
    assert json.loads(rows.read_text())[0]["value"] == pytest.approx(0.905)
