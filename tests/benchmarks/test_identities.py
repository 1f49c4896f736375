"""Runs with a store: what is read of them, and that the store goes with the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import identities
from benchmarks.identities import StoredRun
from runtime.errors import ConfigError


def test_a_run_counts_with_its_slow_updates(tmp_path: Path) -> None:
    """One update of 8 seconds and three of a second: 256 images in 11 s, not the median's 64."""
    (tmp_path / "logs").mkdir()
    for rank, peak in enumerate(("900.0", "1,000.5")):
        line = f"... rank {rank} INFO: peak memory of this rank: {peak} MiB\n"
        (tmp_path / f"logs/rank-{rank:04d}.log").write_text(line)
    # The first two warm up.
    speeds = [1.0, 1.0, 8.0, 64.0, 64.0, 64.0]
    lines = [
        json.dumps(
            {
                "update": update,
                "images_per_second": speed,
                "waiting_for_rows": 0.5 if speed == 8.0 else 0.0,
                "backbone": 0.25,
                "head": 0.125,
            }
        )
        for update, speed in enumerate(speeds, start=1)
    ]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(f"{line}\n" for line in lines))
    found = identities.read(metrics, 2, 0.01)
    assert (found.ranks, found.ratio, found.peaks) == (2, 0.01, [900.0, 1000.5])
    assert found.images_per_second == pytest.approx(4 * 64 / 11)
    assert found.shares == pytest.approx(
        {"waiting_for_rows": 4 / 11, "backbone": 0.25, "head": 0.125}
    )


def test_rows_have_the_memory_of_all_ranks() -> None:
    shares = {"waiting_for_rows": 0.0125, "backbone": 0.9, "head": 0.04}
    rows = identities.rows([StoredRun(2, 0.001, 42.0, shares, (1900.0, 2000.0), "abc")])
    assert [(row.case, row.name, row.value, row.unit) for row in rows] == [
        ("ranks 2, ratio 0.001", "speed", 42.0, "images/s"),
        ("ranks 2, ratio 0.001", "waiting for rows", 0.0125, ""),
        ("ranks 2, ratio 0.001", "memory of all ranks", 3900.0, "MiB"),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--folder", "none"], "--folder none is no folder; make it first"),
        (["--folder", ".", "--ranks", "1,3"], "--ranks: 1,3: each has to divide the 64 images"),
        (["--folder", ".", "--ratios", "0.1,all"], "--ratios: 0.1,all are no numbers"),
    ],
)
def test_wrong_options_are_explained(options: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        identities.main(options)


@pytest.mark.launcher
@pytest.mark.measurements
def test_a_small_run_leaves_its_numbers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(identities, "_NETWORK", "tiny")
    options = ["--folder", str(tmp_path), "--classes", "2000", "--ranks", "1", "--ratios", "0.1"]
    identities.main([*options, "--updates", "2"])
    report = capsys.readouterr().out
    assert "# 2,000 identities with class centers in a store" in report
    (line,) = [line for line in report.splitlines() if line.startswith("| 1 | 0.1 | ")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert float(cells[2]) > 0 and float(cells[3].replace(",", "")) > 100
    shares = [float(cell.rstrip("%")) for cell in cells[4:]]
    assert 80 < shares[1] + shares[2] <= 100 and 0 <= shares[0] < 100
    (kept,) = tmp_path.iterdir()
    # Not run again: what was kept counts.
    kept.write_text(kept.read_text().replace('"ranks": 1', '"ranks": 7'))
    identities.main([*options, "--updates", "2"])
    assert "| 7 | 0.1 | " in capsys.readouterr().out
