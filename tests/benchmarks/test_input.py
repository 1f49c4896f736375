"""The benchmark of input measures what it says, and its report says what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks import input as input_benchmark
from benchmarks import input_subjects
from benchmarks.input import OPENINGS, Opening
from benchmarks.input_subjects import BATCH, ChangingLoader, RawDecoding, SetOpening, ToolkitLoader
from data.batches.face_loader import FaceLoader
from data.records.writer import RecordWriter
from tests.support.near_worker import NearWorker

CACHES = {"train.idx.cache", "train.labels.cache"}


@pytest.fixture
def rec(tmp_path: Path) -> Path:
    """A set of 2 identities with 70 and 10 images."""
    encoded = cv2.imencode(".png", np.full((16, 16, 3), 9, np.uint8))[1].tobytes()
    with RecordWriter(tmp_path / "set", image_size=(16, 16)) as writer:
        for label, count in enumerate([70, 10]):
            for _ in range(count):
                writer.write(encoded, label)
    return tmp_path / "set"


@pytest.mark.parametrize("threads", [1, 3])
def test_raw_decodes_every_image_once(rec: Path, monkeypatch, threads: int) -> None:
    decoded: list[bytes] = []
    raw = RawDecoding(str(rec), 2 * BATCH, threads)
    monkeypatch.setattr(cv2, "imdecode", lambda image, flags: decoded.append(image.tobytes()))
    raw.step()
    assert len(decoded) == 2 * BATCH


def test_the_loader_reads_as_many_other_images_in_each_turn(rec: Path, monkeypatch) -> None:
    asked: list[int] = []
    batches = FaceLoader.batches

    def listen(self, start_update):
        asked.append(start_update)
        return batches(self, start_update)

    monkeypatch.setattr(FaceLoader, "batches", listen)
    ours = ToolkitLoader(str(rec), 3 * BATCH, 2)
    for _ in range(3):
        ours.step()
    assert asked == [0, 3, 6]


def test_images_are_changed(rec: Path) -> None:
    changing = ChangingLoader(str(rec), BATCH, 1)._loader
    plain = ToolkitLoader(str(rec), BATCH, 1)._loader
    assert changing._augmentation.color_jitter > 0 and changing._augmentation.cutout > 0
    images, _ = next(changing.batches())
    others, _ = next(plain.batches())
    assert (images != others).any()


def test_the_iterator_reads_the_whole_set(rec: Path) -> None:
    iterator = input_subjects.MXNetIterator(str(rec), 2 * BATCH, 1)
    assert sorted(iterator._keys) == list(range(1, 81))
    iterator.step()


def test_opening_anew_removes_the_caches(rec: Path) -> None:
    SetOpening(str(rec), 11, cached=True).step()
    assert {path.name for path in rec.glob("*.cache")} == CACHES
    again = SetOpening(str(rec), 0, cached=False)
    again.step()
    assert {path.name for path in rec.glob("*.cache")} == {"train.idx.cache"}
    assert len(again._order) == BATCH


def test_caches_are_written_before_they_are_used() -> None:
    assert [opening.cached for opening in OPENINGS] == [False, False, True, True]
    # The last that is opened without caches leaves those of the labels, too.
    assert OPENINGS[1].min_images > 0


def cells(table: str) -> list[list[str]]:
    """Return the lines of a Markdown table below its header."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


def test_tables_of_made_up_measurements() -> None:
    lines = input_benchmark.speed_table(
        {"raw": [100.0, 200.0, 150.0], "ours": [120.0, 120.0, 120.0]}
    )
    raw, ours = cells(lines)
    assert raw == ["raw", "150", "100 … 200", "1.00", "1.25"]
    assert ours == ["ours", "120", "120 … 120", "0.80", "1.00"]
    openings = {Opening(False, 0): ([1.0, 3.0, 2.0], 1600), Opening(True, 10): ([0.5], None)}
    assert cells(input_benchmark.opening_table(openings, 100)) == [
        ["first time", "2.000", "1.000 … 3.000", "16.0"],
        ["again, --min-images 10", "0.500", "0.500 … 0.500", ""],
    ]


def test_the_program_reports_and_writes_rows(
    rec: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(input_benchmark, "Worker", NearWorker)
    output = tmp_path / "rows.json"
    input_benchmark.main(
        ["--rec", str(rec), "--images", "100", "--records", "200", "--threads", "1"]
        + ["--rounds", "1", "--json", str(output)]
    )
    report = capsys.readouterr().out
    assert "## set, 80 images of 16 x 16, threads=1" in report
    assert "every way takes 64 images" in report
    assert "## opening 200 records" in report
    rows = json.loads(output.read_text())
    assert [row["name"] for row in rows[:4]] == ["raw", "ours", "changing", "iterator"]
    assert [row["name"] for row in rows[4:]] == [str(opening) for opening in OPENINGS]
    assert all(row["value"] > 0 for row in rows)
    assert [row["unit"] for row in rows] == ["images/s"] * 4 + ["s"] * 4
