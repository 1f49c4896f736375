"""What short runs cost, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.errors import ConfigError
from training.plan import runs
from training.plan.keys import Cell
from training.plan.runs import RunCost, line_through


def test_the_cost_of_a_made_up_run(tmp_path: Path) -> None:
    """Eight images at four per second, of which the head and waiting take a half."""
    shares = {"head": 0.25, "communication": 0.125, "waiting": 0.125}
    speeds = [0.1, 0.2, 4.0, 4.0, 2.0]
    lines = [
        json.dumps({"update": number, "images_per_second": speed, **shares})
        for number, speed in enumerate(speeds, start=1)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    logs = [tmp_path / "rank-0000.log", tmp_path / "rank-0001.log"]
    for log, peak in zip(logs, ("512.0", "1,024.5")):
        log.write_text(f"... rank 0 INFO: peak memory of this rank: {peak} MiB\n")
    cost = runs.run_cost(tmp_path / "metrics.jsonl", 8, logs, [*shares])
    assert cost == RunCost(1024.5 * 2**20, 1.0)
    # Half of the time that is not sent, where the others are the network's.
    alone = runs.run_cost(tmp_path / "metrics.jsonl", 8, logs, ["communication"])
    assert alone.seconds == 1.75
    (tmp_path / "metrics.jsonl").write_text('{"update": 1, "images_per_second": 2.0}\n')
    with pytest.raises(ConfigError, match="more than 2 updates of 64 images, .* has 1 such"):
        runs.run_cost(tmp_path / "metrics.jsonl", 64, [], [])


def test_two_runs_make_a_line() -> None:
    cost = line_through("k", (4, RunCost(5e8, 1.0)), (16, RunCost(8e8, 2.5)))
    assert cost.base_bytes == pytest.approx(4e8) and cost.bytes_per_image == pytest.approx(2.5e7)
    assert cost.base_seconds == pytest.approx(0.5)
    assert cost.seconds_per_image == pytest.approx(0.125)
    # A run that others disturbed makes no time negative.
    for first in (9.0, 0.01):
        cost = line_through("k", (4, RunCost(5e8, first)), (16, RunCost(8e8, 4.0)))
        assert (cost.base_seconds, cost.seconds_per_image) == (0.0, 0.25)


def test_a_run_that_fails_is_one_line() -> None:
    with pytest.raises(ConfigError, match="^--calibrate ran -c import sys; .* status 3: why$"):
        runs.start(Cell(1, 1), ["-c", "import sys; print('why'); sys.exit(3)"])


_ENDLESS = """
import pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, signal.default_int_handler)
try:
    for number in range(600):
        pathlib.Path(sys.argv[1]).write_text(str(number))
        time.sleep(0.1)
except KeyboardInterrupt:
    # Longer than mpirun waits after other signals.
    time.sleep(2)
    pathlib.Path(sys.argv[1]).write_text("interrupted")
    sys.exit(130)
"""


def test_a_run_that_is_long_enough_is_interrupted(tmp_path: Path) -> None:
    place = tmp_path / "reached"
    runs.start(Cell(1, 1), ["-c", _ENDLESS, str(place)], place.is_file)
    assert place.read_text() == "interrupted"


@pytest.mark.thorough
@pytest.mark.launcher
def test_ranks_that_are_long_enough_are_interrupted(tmp_path: Path) -> None:
    """horovodrun has become mpirun, which passes one signal on, and waits for its ranks."""
    place = tmp_path / "reached"
    program = _ENDLESS.replace(
        "sys.argv[1]", repr(str(place)) + " + __import__('os').environ['OMPI_COMM_WORLD_RANK']"
    )
    both = [Path(f"{place}{rank}") for rank in (0, 1)]
    runs.start(Cell(2, 1), ["-c", program], lambda: all(one.is_file() for one in both))
    assert {one.read_text() for one in both} == {"interrupted"}
