"""What a checkpoint has cost is read from what a run reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import checkpoint
from runtime.errors import ConfigError
from tests.support.measurement import measure


def write_run(root: Path, ends: list[float]) -> Path:
    """A run with a checkpoint after its update 4."""
    lines = [{"update": 0, "target": "lfw", "accuracy": 0.5, "time": 90.0}]
    lines += [{"update": n, "loss": 1.0, "time": end} for n, end in enumerate(ends, start=1)]
    path = root / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (root / "logs").mkdir()
    (root / "logs/rank-0000.log").write_text(
        "... update 4: checkpoint of 64.5 MiB on this rank: training paused for 0.50 s\n"
        "... update 4: checkpoint models/checkpoints/update-00000004 written in 2.0 s\n"
    )
    return path


def test_cost_of_a_made_up_run(tmp_path: Path) -> None:
    """Updates of 1 s; the pause makes the next one longer, the writing those until 106.5."""
    ends = [80.0, 102.0, 103.0, 104.0, 105.6, 106.7, 107.7, 108.7]
    cost = checkpoint.read_cost(write_run(tmp_path, ends), 4)
    assert cost[:4] == (64.5, 0.5, 2.0, 1.0)
    assert cost.lost == pytest.approx(0.7)
    assert cost.share == pytest.approx(0.7 / (2000 + 0.7))


def test_a_run_that_ends_too_early_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="more --updates"):
        checkpoint.read_cost(write_run(tmp_path, [101.0, 102.0, 103.0, 104.0, 105.6]), 4)


def test_wrong_options_are_explained() -> None:
    with pytest.raises(ConfigError, match="--ranks: '0' is not a positive integer"):
        checkpoint.main(["--ranks", "0"])


@pytest.mark.launcher
@pytest.mark.measurements
def test_a_small_measurement(tmp_path: Path) -> None:
    options = "--classes 300 --ratio 0.5 --batch 2 --updates 30 --rounds 1"
    report, measured = measure("checkpoint", options, tmp_path)
    title = "tiny, 300 classes, ratio 0.5, batch 2 per rank, 2 ranks, threads=1 per rank"
    assert f"## {title}\n" in report
    rows = {row["name"]: row["value"] for row in measured}
    assert rows["copied on rank 0"] > 1 and rows["update"] > 0
    assert {"pause", "copy of as much memory", "lost with --save-interval 2000"} < rows.keys()
