"""A process that may die of what it tries out, and says so in a line."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
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
        ("loop", "it takes more than 6 s for an image, or 120 s in all"),
        # Its own clock ends it, whether or not the process that asked is still there.
        ("wait", "it takes more than 6 s for an image, or 120 s in all"),
    ],
)
def test_the_reason_is_one_line(kind, reason, monkeypatch) -> None:
    start, clocks = subprocess.Popen, {"loop": "CPU_SECONDS", "wait": "WALL_SECONDS"}

    def with_short_clock(command: list[str], **rest: Any) -> object:
        return start([command[0], "-c", SHORT.replace("CLOCK", clocks[kind])], **rest)

    if kind in clocks:
        monkeypatch.setattr(subprocess, "Popen", with_short_clock)
    began = time.monotonic()
    said = child.ask(MODULE, {}, kind.encode(), memory=64 << 20)
    assert time.monotonic() - began < 60
    assert said is None if reason is None else re.fullmatch(reason, said or "")


def test_it_writes_no_files(tmp_path: Path) -> None:
    path = tmp_path / "made"
    said = child.ask(MODULE, {"path": str(path)}, b"write", memory=64 << 20)
    assert said is not None
    assert not path.exists() or not path.stat().st_size
