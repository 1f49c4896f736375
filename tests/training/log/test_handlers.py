"""Where lines of a log go: those of a run, as ``RunLog`` writes them."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest

from tests.training.log.test_metric_files import no_file_above
from tests.training.log.test_run_log import HandClock, open_log, train, update_lines
from training.log.run_log import RunLog

pytestmark = pytest.mark.usefixtures("untouched_logging")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_other_ranks_write_a_file_and_show_warnings_only(tmp_path: Path) -> None:
    clock, screen = HandClock(), io.StringIO()
    with open_log(tmp_path, rank=5, clock=clock, screen=screen) as log:
        log.start(10)
        train(log, clock, range(1, 5))
        logging.getLogger("data").warning("record 17 is broken")
    assert screen.getvalue().count("\n") == 1
    assert "rank 5 WARNING: record 17 is broken" in screen.getvalue()
    written = (tmp_path / "logs" / "rank-0005.log").read_text()
    assert "update 4/10" in written and "record 17 is broken" in written
    assert not (tmp_path / "metrics.jsonl").exists()
    assert not (tmp_path / "scalars").exists()


@pytest.mark.parametrize(
    ("variables", "bar"),
    [
        ({}, True),
        # Under a launcher only if run.sh says so.
        ({"OMPI_COMM_WORLD_RANK": "0"}, False),
        ({"OMPI_COMM_WORLD_RANK": "0", "PROGRESS": "bar"}, True),
    ],
)
def test_a_terminal_has_a_bar_instead_of_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], bar: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    clock, screen = HandClock(), Terminal()
    with open_log(tmp_path, clock=clock, screen=screen) as log:
        log.start(10, update=6)
        train(log, clock, range(7, 11))
        logging.getLogger("data").warning("record 17 is broken")
    shown = screen.getvalue()
    # The bar of a resumed run starts where the run does.
    assert [words in shown for words in (" 6/10", "100%|")] == [bar] * 2
    assert "256 images/s" in shown and "record 17 is broken\n" in shown
    assert len(update_lines(screen)) == (0 if bar else 2)
    assert " update 8/10" in (tmp_path / "logs" / "rank-0000.log").read_text()


def test_a_run_goes_on_when_screen_or_log_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:
        with open_log(tmp_path, screen=full, frequent=1) as log:
            log.start(3)
            train(log, HandClock(), range(1, 4))
        full.write("no error any more")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("warning: the screen cannot be written (No space left on device)")
    lines = (tmp_path / "logs/rank-0000.log").read_text()
    assert "update 3/3" in lines and lines.count("the screen cannot be written") == 1

    with RunLog(tmp_path, rank=1, world_size=2, frequent=1) as log:
        log.start(10)
        with no_file_above((tmp_path / "logs/rank-0001.log").stat().st_size + 10):
            for update in (1, 2, 3):
                log.update(update, loss=float, lr=0.1, images=1)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("warning:")
    assert "rank-0001.log cannot be written (File too large)" in said


def test_a_name_makes_no_line_and_no_command_of_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pytest would keep the line for its report, which travels between its processes as UTF-8.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    screen = io.StringIO()
    with open_log(tmp_path, screen=screen):
        logging.getLogger("data").warning("%s is broken", "a\n2026 rank 0 INFO: \x1b[2J\u202eé")
        try:
            raise ValueError("\x1b[2J")
        except ValueError:
            logging.getLogger("data").exception("stopped")
    with open_log(tmp_path):
        logging.getLogger("test").info("%s", "faces/\udcff")
    written = (tmp_path / "logs/rank-0000.log").read_text()
    for shown in (screen.getvalue(), written):
        assert "rank 0 WARNING: a\\n2026 rank 0 INFO: \\x1b[2J\\u202eé is broken\n" in shown
        assert "\nTraceback" in shown and "ValueError: \\x1b[2J\n" in shown
        assert not set(shown) & set("\x1b\u202e")
    assert "faces/\\udcff" in written
