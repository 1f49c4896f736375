"""The comparison of plans with runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import plan
from benchmarks.plan import Comparison, Figures
from runtime.errors import ConfigError


def test_what_a_made_up_run_took(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for rank, peak in enumerate(("900.0", "1,000.0")):
        line = f"... rank {rank} INFO: peak memory of this rank: {peak} MiB\n"
        (tmp_path / f"logs/rank-{rank:04d}.log").write_text(line)
    speeds = [1.0, 1.0, 1.0, 32.0, 64.0, 32.0]
    lines = [
        json.dumps({"update": number, "images_per_second": speed})
        for number, speed in enumerate(speeds, start=1)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert plan.taken(tmp_path, 16) == Figures(1000 * 2**20, 0.5)


def test_what_holds_is_counted() -> None:
    good = Comparison("1 train.py --network tiny", Figures(1.09, 1.2), Figures(1.0, 1.0))
    bad = Comparison("2 train.py --network tiny", Figures(0.89, 0.7), Figures(1.0, 1.0))
    text = plan.report([good, bad])
    assert "memory within 10%: 1 of 2, time within 25%: 1 of 2" in text
    assert "+9.0%" in text and "-11.0%" in text and "`2 train.py --network tiny`" in text
    rows = plan.rows([good])
    assert [(row.name, row.value, row.unit) for row in rows] == [
        *(("planned memory", 1.09, "B"), ("planned time", 1.2, "s")),
        *(("taken memory", 1.0, "B"), ("taken time", 1.0, "s")),
    ]


def test_wrong_options_are_explained() -> None:
    with pytest.raises(ConfigError, match="--updates: '0' is not a positive integer"):
        plan.main(["--updates", "0"])


@pytest.mark.launcher
@pytest.mark.measurements
@pytest.mark.parametrize(
    "case",
    [
        "1 train.py --network tiny --embedding-size 64 --num-classes 20000 --batch-size 32 "
        "--sample-ratio 0.1 --center-store {store}",
        "1 classify.py --dataset synthetic --model LeNet --batch-size 16",
    ],
)
def test_a_small_plan_holds(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory does not depend on what else the machine does; time does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    written = tmp_path / "rows.json"
    assert plan.main(["--case", case, "--updates", "2", "--json", str(written)]) == 0
    assert "memory within 10%: 1 of 1" in capsys.readouterr().out
    assert len(json.loads(written.read_text())) == 4
