from __future__ import annotations

import re
import subprocess
import time
from typing import Any

import pytest

from runtime.untrusted import child

MODULE = "tests.support.trying_child"
# With a clock of a second; an unchanged process has those of the module.
SHORT = """
from runtime.untrusted import child
child.CLOCK = 1
from tests.support.trying_child import answer
child.serve(answer)
"""


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("good", None),
        ("print", None),
        ("crash", r"it ends the process that tries it out \(SIGSEGV\)"),
        ("end", "the process that tries it out fails .*"),
        ("memory", "it needs more than 64 MiB of memory"),
        ("refuse", r"no \?\[2Jnetwork"),
        ("write", ".+"),
        ("loop", "it takes more than 6 s for an image, or 120 s in all"),
        # Its own clock ends it, whether or not the process that asked is still there.
        ("wait", "it takes more than 6 s for an image, or 120 s in all"),
    ],
)
def test_the_reason_is_one_line_and_no_file_is_written(kind, reason, monkeypatch, tmp_path) -> None:
    start, clocks = subprocess.Popen, {"loop": "CPU_SECONDS", "wait": "WALL_SECONDS"}

    def with_short_clock(command: list[str], **rest: Any) -> object:
        return start([command[0], "-c", SHORT.replace("CLOCK", clocks[kind])], **rest)

    if kind in clocks:
        monkeypatch.setattr(subprocess, "Popen", with_short_clock)
    began, path = time.monotonic(), tmp_path / "made"
    said = child.ask(MODULE, {"path": str(path)}, kind.encode(), memory=64 << 20)
    assert time.monotonic() - began < 60
    assert not path.exists() or not path.stat().st_size
    assert said is None if reason is None else re.fullmatch(reason, said or "")
