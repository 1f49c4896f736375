"""The report says what was measured, and runs end with their measurement."""

from __future__ import annotations

import json

import pytest

from benchmarks import end_to_end, training_runs
from benchmarks.end_to_end import RunMeasurement, RunSetup
from benchmarks.training_runs import PARTS, TrainingCase, TrainingSpeed
from runtime.errors import ConfigError
from tests.support.measurement import measure


def speed(images_per_second: float, waiting: float = 0.01) -> TrainingSpeed:
    return TrainingSpeed(images_per_second, dict(zip(PARTS, (waiting, 0.7, 0.2, 0.05))))


def test_setups_are_one_rank_several_ranks_and_independent_runs() -> None:
    assert end_to_end.setups((4, 1, 2)) == [
        RunSetup(1),
        RunSetup(2),
        RunSetup(1, copies=2),
        RunSetup(4),
        RunSetup(1, copies=4),
    ]
    assert end_to_end.setups((1,)) == [RunSetup(1)]


def test_table_of_made_up_measurements() -> None:
    measured = {
        RunSetup(1): RunMeasurement([[speed(10.0)], [speed(12.0)], [speed(8.0)]]),
        RunSetup(2): RunMeasurement([[speed(18.0, waiting=0.03)]] * 3),
        RunSetup(1, copies=2): RunMeasurement([[speed(9.5), speed(8.5)]] * 3),
    }
    alone, together, apart = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in end_to_end.table(measured).splitlines()[2:]
    )
    assert alone[:5] == ["one rank", "10.00", "8.00 … 12.00", "1.000", ""]
    assert together[:5] == ["2 ranks", "18.00", "18.00 … 18.00", "0.900", "1.000"]
    assert together[5:] == ["3.0%", "70.0%", "20.0%", "5.0%"]
    assert apart[:5] == ["2 runs of one rank", "18.00", "18.00 … 18.00", "0.900", ""]


def test_speed_is_the_median_after_the_warm_up(tmp_path) -> None:
    lines = [{"update": 0, "target": "lfw", "accuracy": 0.5}]
    for update, images_per_second in enumerate([1, 2, 10, 70, 20], start=1):
        lines.append({"update": update, "images_per_second": images_per_second})
        lines[-1].update(dict.fromkeys(PARTS, images_per_second / 100))
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert training_runs.read_speed(path) == TrainingSpeed(20, dict.fromkeys(PARTS, 0.2))


def test_a_failed_run_shows_its_output() -> None:
    case = TrainingCase("tiny", classes=1, ratio=1.0, batch=4)
    with pytest.raises(RuntimeError, match="status 2:\n.*--num-classes 1 must be at least 2"):
        training_runs.train(case, ranks=1, copies=1, threads=1, updates=1, read=str)


def test_a_run_ends_with_its_context() -> None:
    with pytest.raises(KeyError), training_runs.started(["sleep", "100"], {}) as process:
        assert process.poll() is None
        raise KeyError
    assert process.poll() is not None


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--ranks", "1,0"], "--ranks: '0' is not a positive integer"),
        (["--ratio", "2"], "--ratio: '2' is not above 0"),
        (["--network", "r97"], "r97"),
    ],
)
def test_wrong_options_are_explained(words, complaint) -> None:
    with pytest.raises(ConfigError, match=complaint):
        end_to_end.main(words)


@pytest.mark.launcher
@pytest.mark.measurements
def test_a_small_measurement(tmp_path) -> None:
    options = "--network tiny --classes 300 --ratio 0.5 --batch 4 --updates 1 --rounds 1"
    report, rows = measure("end_to_end", options, tmp_path)
    title = "tiny, 300 classes, ratio 0.5, batch 4 per rank, threads=1 per rank"
    assert f"## {title}\n" in report
    assert {row["name"] for row in rows} == {"one rank", "2 ranks", "2 runs of one rank"}
    assert all(row["case"] == title for row in rows)
    speeds = [row["value"] for row in rows if row["unit"] == "images/s"]
    assert len(speeds) == 3 and min(speeds) > 0
