from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO
from unittest.mock import MagicMock, patch

import pytest

from evaluation.verification import VerificationResult
from runtime.errors import ConfigError, DataError
from runtime.stopwatch import BACKBONE, COMMUNICATION, HEAD, WAITING
from training.log import run_log
from training.log.run_log import RunLog

pytestmark = pytest.mark.usefixtures("untouched_logging")


class HandClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


LFW_RESULT = VerificationResult(
    accuracy=0.9912, accuracy_std=0.0034, threshold=1.5, xnorm=22.5,
    tar_at_far={1e-3: 0.98, 1e-4: float("nan")},
)  # fmt: skip


def open_log(
    folder: Path,
    rank: int = 0,
    frequent: int = 4,
    screen: TextIO | None = None,
    clock: HandClock | None = None,
) -> RunLog:
    """Open a log that finds this standard output and this clock."""
    time = SimpleNamespace(monotonic=clock or HandClock())
    with redirect_stdout(screen or io.StringIO()), patch.object(run_log, "time", time):
        return RunLog(folder, rank=rank, world_size=2, frequent=frequent)


def train(log: RunLog, clock: HandClock, updates: range, waiting: float = 0.05) -> None:
    """Updates of half a second."""
    parts = {WAITING: waiting, BACKBONE: 0.3, HEAD: 0.1, COMMUNICATION: 0.025}
    for update in updates:
        for part, seconds in parts.items():
            with log.stopwatch.part(part):
                clock.now += seconds
        clock.now += 0.5 - sum(parts.values())
        log.update(update, loss=partial(float, update), lr=0.1, images=128)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def update_lines(screen: io.StringIO) -> list[str]:
    return [line for line in screen.getvalue().splitlines() if " update " in line]


def test_lines_have_loss_speed_rate_shares_and_time_left(tmp_path: Path) -> None:
    clock, screen = HandClock(), io.StringIO()
    with open_log(tmp_path, clock=clock, screen=screen) as log:
        # Set-up before the start is not counted.
        clock.now += 60.0
        log.start(10)
        train(log, clock, range(1, 11))
        log.verification("lfw", LFW_RESULT, best=0.9923, update=8)
    first, second, last, line = update_lines(screen)
    assert first.endswith(
        "update 4/10  loss 4.0000  256 images/s  lr 0.1  waiting 10%  backbone 60%  head 20%  "
        "communication 5%  left 0:00:03"
    )
    assert "update 8/10" in second
    assert "update 10/10" in last and last.endswith("left 0:00:00")
    for part in ("lfw at update 8", "0.9912 +- 0.0034 (best 0.9923)", "TAR@FAR=0.001 0.9800"):
        assert part in line
    record = read_metrics(tmp_path)[-1]
    assert (record["target"], record["update"]) == ("lfw", 8)
    assert (record["accuracy"], record["best"], record["xnorm"]) == (0.9912, 0.9923, 22.5)
    assert (record["tar_at_far_0.001"], record["tar_at_far_0.0001"]) == (0.98, None)


def test_the_loss_is_read_only_when_it_is_reported_and_its_wait_is_time_of_updates(
    tmp_path: Path,
) -> None:
    clock, screen, looks = HandClock(), io.StringIO(), []

    def loss() -> float:
        """As an NDArray's: waits for the device."""
        looks.append(1)
        clock.now += 8.0
        return 1.5

    averages = {"mean_loss": 0.25, "accuracy": 0.75, "correct": 3, "total": 4, "rate/a": 5.4}
    with open_log(tmp_path, clock=clock, screen=screen) as log:
        log.start(10)
        for update in range(1, 4):
            log.update(update, loss=loss, lr=0.1, images=11)
        assert not looks
        log.update(4, loss=loss, lr=0.1, images=11, averages=lambda: averages)
        # Of a run that counts nothing else, a total is a number as any other.
        log.update(8, loss=loss, lr=0.1, images=4, averages=lambda: {"total": 4.0})
    record, _ = read_metrics(tmp_path)
    assert (len(looks), record["loss"], record["images_per_second"]) == (2, 1.5, 5.5)
    assert {name: record[name] for name in averages} == averages
    first, second = update_lines(screen)
    # What was counted is a fraction; slow runs show a decimal.
    assert "  mean_loss 0.2500  accuracy 0.7500  correct 3/4  rate 5  loss 1.5000" in first
    assert "5.5 images/s" in first and "  total 4.0000  loss" in second


def test_verifications_change_the_time_left_but_not_images_per_second(tmp_path: Path) -> None:
    clock = HandClock()
    with open_log(tmp_path, clock=clock) as log:
        log.start(14, update=4)
        train(log, clock, range(5, 9))
        with log.paused():
            clock.now += 6.0
        train(log, clock, range(9, 13))
    first, second = read_metrics(tmp_path)
    assert second["images_per_second"] == first["images_per_second"] == pytest.approx(256.0)
    shares = [second[part] for part in (WAITING, BACKBONE, HEAD, COMMUNICATION)]
    assert shares == pytest.approx([0.1, 0.6, 0.2, 0.05])
    assert first["seconds_left"] == pytest.approx(6 * 0.5)
    assert second["seconds_left"] == pytest.approx(2 * 10.0 / 8)


def test_the_summary_is_of_all_starts(tmp_path: Path) -> None:
    clock, screen, first = HandClock(), io.StringIO(), 0
    with open_log(tmp_path, clock=clock, screen=screen) as log:
        # Without updates there is nothing to say.
        log.summarize(debug=False)
        assert screen.getvalue().count("\n") == 1
        for waiting in (0.005, 0.095):
            log.start(first + 12, first)
            # The first report of each start is left out: it waits for the first batches.
            train(log, clock, range(first + 1, first + 5), waiting=0.075)
            train(log, clock, range(first + 5, first + 13), waiting=waiting)
            first += 12
        for debug, verdict in (
            (False, "input is a bottleneck: 10.0% of the time"),
            (True, "--debug: 256 images/s with batches from memory"),
        ):
            log.summarize(debug=debug)
            lines = [line.split("INFO: ")[1] for line in screen.getvalue().splitlines()[-3:]]
            assert lines[0].startswith("peak memory of this rank: ") and lines[0].endswith(" MiB")
            assert lines[1].startswith("time: waiting 10.0%, backbone 60.0%, head 20.0%")
            assert lines[2].startswith(verdict)


def test_a_folder_that_is_moved_away_ends_the_run_at_the_next_report(tmp_path: Path) -> None:
    clock, root = HandClock(), tmp_path / "run"
    with open_log(root, clock=clock, frequent=1) as log:
        log.start(10)
        train(log, clock, range(1, 3))
        root.rename(tmp_path / "moved")
        with pytest.raises(DataError, match=f"--models-root {root} is no longer the folder"):
            train(log, clock, range(3, 4))
        root.mkdir()
        with pytest.raises(DataError, match="is no longer the folder"):
            log.write_report()
    assert not any(root.iterdir())
    # A run that goes on there keeps its metrics.
    with open_log(tmp_path / "moved", clock=clock, frequent=1) as log:
        log.start(10, update=2)
        train(log, clock, range(3, 4))
    assert [record["update"] for record in read_metrics(tmp_path / "moved")] == [1, 2, 3]


def test_the_exception_that_ends_a_run_is_in_its_log_file(tmp_path: Path) -> None:
    screen = io.StringIO()
    with pytest.raises(ZeroDivisionError), open_log(tmp_path, screen=screen) as log:
        log.start(10)
        log.update(1, loss=float, lr=0.1, images=1)
        raise ZeroDivisionError("a mistake of ours")
    written = (tmp_path / "logs" / "rank-0000.log").read_text()
    for said in ("stopped after update 1", "ZeroDivisionError: a mistake of ours"):
        assert said in written and said not in screen.getvalue()
    assert f"rank 0 of 2, files in {tmp_path}" in written
    for rank in (0, 1):
        with pytest.raises(ConfigError, match="--models-root .*/metrics.jsonl/run cannot be wr"):
            open_log(tmp_path / "metrics.jsonl" / "run", rank=rank)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_watchdog_has_its_short_limit_within_updates_and_none_in_the_report(
    tmp_path: Path, rank: int
) -> None:
    """The report may take longer, and must not end the run with another status."""
    watchdog, files = MagicMock(), MagicMock()
    with (
        patch.object(run_log, "Watchdog", lambda *_, **__: watchdog),
        patch.object(run_log, "ReportFiles", lambda *_: files),
        RunLog(tmp_path, rank=rank, world_size=2, frequent=9, stall_timeout=7) as log,
    ):
        files.write_report.side_effect = lambda: watchdog.close.assert_called_once_with()
        log.begin_part(3, ranks=2)
        log.start(3)
        log.update(1, loss=float, lr=0.1, images=1)
        with log.paused():
            pass
        log.end_updates()
        log.verification("lfw", LFW_RESULT, best=0.9923, update=8)
        log.write_report()
        log.record(9, {"accuracy": 0.75}, target="validation")
    # The first update after each start compiles, or comes after a meeting of all workers.
    names = ["leave_updates", "beat", "pause", "pause().__enter__", "pause().__exit__"]
    called = [call[0] for call in watchdog.mock_calls if "__bool__" not in call[0]]
    assert called == [*names, "leave_updates", "close"]
    watchdog.beat.assert_called_once_with(1)
    called = [call[0] for call in files.mock_calls]
    assert called == (["begin_part", "verification", "write_report"] if rank == 0 else [])
    if rank == 0:
        record = read_metrics(tmp_path)[-1]
        assert (record["update"], record["target"], record["accuracy"]) == (9, "validation", 0.75)
    else:
        assert not (tmp_path / "metrics.jsonl").exists()
