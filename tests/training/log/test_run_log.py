"""What a run logs, and where its lines go: to the screen, files, or into a bar."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import psutil
import pytest

from evaluation.verification import VerificationResult
from runtime.errors import DataError
from runtime.stopwatch import BACKBONE, COMMUNICATION, HEAD, WAITING
from tests.training.log.test_files import no_file_above
from training.log import run_log
from training.log.run_log import RunLog, Throughput, peak_memory

LFW_RESULT = VerificationResult(
    accuracy=0.9912, accuracy_std=0.0034, threshold=1.5, xnorm=22.5,
    tar_at_far={1e-3: 0.98, 1e-4: float("nan")},
)  # fmt: skip


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    yield
    assert (list(root.handlers), root.level) == before


class LoggedRun:
    """A run's log, its screen, and its clock, which stands still until it is moved."""

    def __init__(self, folder: Path, rank=0, frequent=4, screen=None, **more: Any) -> None:
        self.folder, self.now, self.screen = folder, 1000.0, screen or io.StringIO()
        self.log_file = folder / f"logs/rank-000{rank}.log"
        time, self.watchdog = SimpleNamespace(monotonic=lambda: self.now), MagicMock()
        places = {"time": time, "Watchdog": lambda *_, **__: self.watchdog}
        with redirect_stdout(self.screen), patch.multiple(run_log, **places):
            further = {"world_size": 2, "frequent": frequent, "stall_timeout": 7, **more}
            self.log = RunLog(folder, rank=rank, **further)

    def __enter__(self) -> LoggedRun:
        self.log.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.log.__exit__(*error)
        # Not a count of all open files: threads of earlier tests close some.
        paths = [Path(one.path) for one in psutil.Process().open_files()]
        assert not [path for path in paths if path.is_relative_to(self.folder)]

    def train(self, first: int, last: int, waiting: float = 0.05) -> None:
        parts = {WAITING: waiting, BACKBONE: 0.3, HEAD: 0.1, COMMUNICATION: 0.025}
        for update in range(first, last + 1):
            for part, seconds in parts.items():
                with self.log.stopwatch.part(part):
                    self.now += seconds
            self.now += 0.5 - sum(parts.values())
            self.log.update(update, loss=partial(float, update), lr=0.1, images=128)

    def metrics(self) -> list[dict[str, Any]]:
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def update_lines(self) -> list[str]:
        return [line for line in self.screen.getvalue().splitlines() if " update " in line]


def test_lines_have_loss_speed_rate_shares_and_time_left(tmp_path: Path) -> None:
    with LoggedRun(tmp_path) as run:
        run.now += 60.0
        run.log.start(10)
        run.train(1, 10)
        run.log.verification("lfw", LFW_RESULT, best=0.9923, update=8)
    first, second, last, line = run.update_lines()
    assert first.endswith(
        "update 4/10  loss 4.0000  256 images/s  lr 0.1  waiting 10%  backbone 60%  head 20%  "
        "communication 5%  left 0:00:03"
    )
    assert "update 8/10" in second and "update 10/10" in last and last.endswith("left 0:00:00")
    for part in ("lfw at update 8", "0.9912 +- 0.0034 (best 0.9923)", "TAR@FAR=0.001 0.9800"):
        assert part in line
    expected = {"target": "lfw", "update": 8, "accuracy": 0.9912, "best": 0.9923, "xnorm": 22.5}
    expected.update({"tar_at_far_0.001": 0.98, "tar_at_far_0.0001": None})
    assert expected.items() <= run.metrics()[-1].items()


def test_the_loss_is_read_when_it_is_reported_and_its_wait_is_time_of_updates(tmp_path) -> None:
    looks = []
    averages = {"mean_loss": 0.25, "accuracy": 0.75, "correct": 3, "total": 4, "rate/a": 5.4}
    with LoggedRun(tmp_path) as run:

        def loss() -> float:
            looks.append(1)
            run.now += 8.0
            return 1.5

        run.log.start(10)
        for update in range(1, 4):
            run.log.update(update, loss=loss, lr=0.1, images=11)
        assert not looks
        run.log.update(4, loss=loss, lr=0.1, images=11, averages=lambda: averages)
        run.log.update(8, loss=loss, lr=0.1, images=4, averages=lambda: {"total": 4.0})
    record, _ = run.metrics()
    expected = {"loss": 1.5, "images_per_second": 5.5, **averages}
    assert len(looks) == 2 and expected.items() <= record.items()
    first, second = run.update_lines()
    assert "  mean_loss 0.2500  accuracy 0.7500  correct 3/4  rate 5  loss 1.5000" in first
    assert "waiting" not in first, "no part has taken time"
    assert "5.5 images/s" in first and "  total 4.0000  loss" in second


def test_verifications_change_the_time_left_but_not_images_per_second(tmp_path: Path) -> None:
    with LoggedRun(tmp_path) as run:
        run.log.start(14, update=4)
        run.train(5, 8)
        with run.log.paused():
            run.now += 6.0
        run.train(9, 12)
    first, second = run.metrics()
    assert second["images_per_second"] == first["images_per_second"] == pytest.approx(256.0)
    shares = [second[part] for part in (WAITING, BACKBONE, HEAD, COMMUNICATION)]
    assert shares == pytest.approx([0.1, 0.6, 0.2, 0.05])
    assert first["seconds_left"] == pytest.approx(6 * 0.5)
    assert second["seconds_left"] == pytest.approx(2 * 10.0 / 8)


def test_the_summary_is_of_the_last_start_without_its_first_report(tmp_path: Path) -> None:
    with LoggedRun(tmp_path) as run:
        run.log.summarize()
        assert run.screen.getvalue().count("\n") == 1
        for first, waiting in ((0, 0.005), (12, 0.05)):
            run.log.start(first + 12, first)
            # It waits for the first batches.
            run.train(first + 1, first + 4, waiting=0.075)
            run.train(first + 5, first + 12, waiting=waiting)
        run.log.summarize()
        lines = [line.split("INFO: ")[1] for line in run.screen.getvalue().splitlines()[-3:]]
        assert lines[0].startswith("peak memory of this rank: ") and lines[0].endswith(" MiB")
        shares = "waiting 10.0%, backbone 60.0%, head 20.0%, communication 5.0%, rest 5.0%"
        assert lines[1] == f"time: {shares}"
        assert lines[2].startswith("input is a bottleneck: 10.0% of the time")


def test_a_folder_that_is_moved_away_ends_the_run_at_the_next_report(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with LoggedRun(root, frequent=1) as run:
        run.log.start(10)
        run.train(1, 2)
        root.rename(tmp_path / "moved")
        with pytest.raises(DataError, match=f"--models-root {root} is no longer the folder"):
            run.train(3, 3)
        root.mkdir()
        with pytest.raises(DataError, match="is no longer the folder"):
            run.log.write_report()
    assert not any(root.iterdir())


def test_the_exception_that_ends_a_run_is_in_its_log_file(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), LoggedRun(tmp_path) as run:
        run.log.start(10)
        run.train(1, 1)
        raise ZeroDivisionError("a mistake of ours")
    written = run.log_file.read_text()
    for said in ("stopped after update 1", "ZeroDivisionError: a mistake of ours"):
        assert said in written and said not in run.screen.getvalue()
    assert f"rank 0 of 2, files in {tmp_path}" in written
    for rank in (0, 1):
        with pytest.raises(DataError, match="--models-root .*/metrics.jsonl/run cannot be wr"):
            LoggedRun(tmp_path / "metrics.jsonl" / "run", rank=rank)


def test_the_watchdog_has_its_short_limit_in_updates_and_none_in_the_report(tmp_path) -> None:
    """The report may take longer, and must not end the run with another status."""
    files = MagicMock()
    with patch.object(run_log, "RunFiles", lambda *_: files), LoggedRun(tmp_path) as run:
        watchdog = run.watchdog
        files.write_report.side_effect = lambda: watchdog.close.assert_called_once_with()
        run.log.start(3)
        run.train(1, 1)
        with run.log.paused():
            pass
        run.log.end_updates()
        run.log.verification("lfw", LFW_RESULT, best=0.9923, update=8)
        run.log.write_report()
        run.log.record(9, {"accuracy": 0.75}, target="validation")
    # The first update after each start compiles, or comes after a meeting of all workers.
    names = ["leave_updates", "beat", "pause", "pause().__enter__", "pause().__exit__"]
    assert [one[0] for one in watchdog.mock_calls] == [*names, "leave_updates", "close", "close"]
    watchdog.beat.assert_called_once_with(1)
    files.write.assert_called_with(9, {"accuracy": 0.75}, target="validation")


def test_other_ranks_write_a_file_and_show_warnings_only(tmp_path: Path) -> None:
    with LoggedRun(tmp_path, rank=5) as run:
        run.log.start(10)
        run.train(1, 4)
        logging.getLogger("data").warning("record 17 is broken")
    shown, written = run.screen.getvalue(), run.log_file.read_text()
    assert shown.count("\n") == 1 and "rank 5 WARNING: record 17 is broken" in shown
    assert "update 4/10" in written and "record 17 is broken" in written
    assert not (tmp_path / "metrics.jsonl").exists() and not (tmp_path / "scalars").exists()


@pytest.mark.parametrize(("variables", "bar"), [
    ({}, True),
    # Under a launcher only if run.sh says so.
    ({"OMPI_COMM_WORLD_RANK": "0"}, False),
    ({"OMPI_COMM_WORLD_RANK": "0", "PROGRESS": "bar"}, True),
])  # fmt: skip
def test_a_terminal_has_a_bar_instead_of_lines(tmp_path, monkeypatch, variables, bar) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    with LoggedRun(tmp_path, screen=terminal) as run:
        run.log.start(10, update=6)
        run.train(7, 10)
        logging.getLogger("data").warning("record 17 is broken")
    shown = terminal.getvalue()
    assert [words in shown for words in (" 6/10", "100%|")] == [bar] * 2
    assert shown.endswith("\n"), "the bar stays as it is"
    assert "256 images/s" in shown and "record 17 is broken\n" in shown
    assert len(run.update_lines()) == (0 if bar else 2)
    assert " update 8/10" in run.log_file.read_text()


def test_a_run_goes_on_when_screen_or_log_file_cannot_be_written(tmp_path: Path, capsys) -> None:
    with open("/dev/full", "w") as full:
        with LoggedRun(tmp_path, screen=full, frequent=1) as run:
            run.log.start(3)
            run.train(1, 3)
        full.write("no error any more")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("warning: the screen cannot be written (No space left on device)")
    lines = run.log_file.read_text()
    assert "update 3/3" in lines and lines.count("the screen cannot be written") == 1
    with LoggedRun(tmp_path, rank=1, frequent=1) as run:
        run.log.start(10)
        with no_file_above(run.log_file.stat().st_size + 10):
            run.train(1, 3)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("warning:")
    assert "rank-0001.log cannot be written (File too large)" in said


def test_a_name_makes_no_line_and_no_command_of_a_terminal(tmp_path: Path, monkeypatch) -> None:
    # Pytest would keep the line for its report, which travels between its processes as UTF-8.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with LoggedRun(tmp_path) as run:
        try:
            raise ValueError("\x1b[2J")
        except ValueError:
            name = "a\n2026 rank 0 INFO: \x1b[2J\u202eé"
            logging.getLogger("data").exception("%s is broken", name)
        logging.getLogger("test").info("%s", "faces/\udcff")
    for shown in (run.screen.getvalue(), run.log_file.read_text()):
        assert "rank 0 ERROR: a\\n2026 rank 0 INFO: \\x1b[2J\\u202eé is broken\n" in shown
        assert "\nTraceback" in shown and "ValueError: \\x1b[2J\n" in shown
        assert not set(shown) & set("\x1b\u202e") and "faces/\\udcff" in shown


@pytest.mark.parametrize(("waiting", "words"), [
    (0.12, "input is not the bottleneck: 1.2% of the time"),
    (0.2, "input is a bottleneck: 2.0% of the time went into waiting for data; "),
    (2.0, "200 images/s would be 250 (docs/troubleshooting.md)"),
])  # fmt: skip
def test_judgements_in_words(waiting: float, words: str) -> None:
    parts = {WAITING: waiting, BACKBONE: 5, HEAD: 1, COMMUNICATION: 0.25}
    assert words in Throughput(2000, 10.0, parts).judge_input()


def test_a_sample_gives_the_shares_of_its_whole_interval(tmp_path: Path) -> None:
    with LoggedRun(tmp_path, frequent=1) as run:
        stopwatch = run.log.stopwatch
        stopwatch.sample()
        run.log.start(1)
        run.now += 28.0
        with run.log.paused():
            run.now += 100.0
        stopwatch.begin_sample()
        with stopwatch.part(HEAD):
            run.now += 1.0
        run.now += 3.0
        run.log.update(1, loss=float, lr=0.1, images=64)
    assert run.metrics()[0]["head"] == pytest.approx(1 / 4)
    assert (run.log.total.seconds, run.log.total.parts[HEAD]) == (32.0, 8.0)


def test_the_peak_is_read_in_bytes() -> None:
    used = psutil.Process().memory_info().rss
    np.ones(2**27, np.uint8)
    assert used + 2**26 < peak_memory() < 2**40
