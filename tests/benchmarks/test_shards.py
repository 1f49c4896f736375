"""The benchmark of shards makes sets that open from their caches, and reports what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks import shards as shards_benchmark
from benchmarks.shards import WAYS, ShardsOpening, make_shards
from data.records import index_cache
from data.records.shards import open_sets
from tests.support.near_worker import NearWorker


def test_made_up_shards_open_from_their_caches(tmp_path: Path, monkeypatch) -> None:
    make_shards(tmp_path, 3, 95)
    # Nothing may be built: the records do not exist.
    monkeypatch.setattr(index_cache, "write_cache", None)
    whole = open_sets([tmp_path])
    assert (len(whole), whole.num_classes) == (3 * 95, 3 * 10)
    labels = np.concatenate([labels for _, labels in whole.label_table().chunks()])
    assert (np.bincount(labels) == [*[10] * 9, 5] * 3).all()
    for min_images in (0, 10):
        ShardsOpening(str(tmp_path), min_images).step()


def test_the_program_reports_and_writes_rows(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(shards_benchmark, "Worker", NearWorker)
    output = tmp_path / "rows.json"
    shards_benchmark.main(
        ["--shards", "2", "--records", "200", "--rounds", "1", "--folder", str(tmp_path)]
        + ["--json", str(output)]
    )
    report = capsys.readouterr().out
    assert "# Opening 2 shards, 400 images" in report and "| again |" in report
    rows = json.loads(output.read_text())
    assert [row["name"] for row in rows] == list(WAYS)
    assert all(row["value"] > 0 and row["unit"] == "s" for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]
