from __future__ import annotations

import os
from pathlib import Path

import pytest

from parallel.parameter_server.trace import Trace
from runtime.errors import ConfigError


def test_lines_are_in_the_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Trace("", "worker-0").write("push")
    assert list(tmp_path.iterdir()) == []
    trace = Trace(str(tmp_path / "new" / "folder"), "worker-0")
    trace.write("pusher", 1, 4, 7)
    trace.write("push")
    file = tmp_path / "new" / "folder" / "worker-0"
    assert file.read_text() == "pusher 1 4 7\npush\n"
    with pytest.raises(ConfigError, match="--trace .*worker-0 cannot be written .*give another"):
        Trace(str(file), "worker-0")


def test_a_full_disk_ends_the_trace_and_not_the_job(caplog, monkeypatch, tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr("parallel.parameter_server.trace.open_kept", lambda *_: full)
    trace = Trace(str(tmp_path), "worker-0")
    for _ in range(3):
        trace.write("push")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("worker-0 cannot be written (No space left on device); it ends here")
