from __future__ import annotations

import os
from pathlib import Path

import pytest

from parallel.parameter_server.trace import Trace
from runtime.errors import ConfigError


def test_lines_are_in_the_file_at_once(tmp_path: Path) -> None:
    trace = Trace(str(tmp_path / "new" / "folder"), "worker-0")
    trace.write("pusher", 1, 4, 7)
    trace.write("pull", 2, 3)
    trace.write("push")
    trace.write(4, 1, 2, 3, 2)
    written = (tmp_path / "new" / "folder" / "worker-0").read_text()
    assert written == "pusher 1 4 7\npull 2 3\npush\n4 1 2 3 2\n"


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Trace("", "worker-0").write("push")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--trace .*file cannot be written .*give another"):
        Trace(str(tmp_path / "file"), "worker-0")


def test_a_full_disk_ends_the_trace_and_not_the_job(caplog, monkeypatch, tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr("parallel.parameter_server.trace.open_kept", lambda *_: full)
    trace = Trace(str(tmp_path), "worker-0")
    for _ in range(3):
        trace.write("push")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("worker-0 cannot be written (No space left on device); it ends here")
