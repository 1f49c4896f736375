"""The processes of a job, known by its folder, which their environment names."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

FOLDER = "MODELS_ROOT"
"""The variable that names the folder; no other job has the same one."""


class Running(NamedTuple):
    """A process."""

    pid: int
    words: list[str]
    """Its command line; empty for a moment while it ends."""
    variables: dict[str, str]
    """Its environment when it was started."""


def of_job(folder: Path) -> list[Running]:
    """All that run now."""
    found = []
    for process in psutil.process_iter():
        try:
            variables = process.environ()
            if variables.get(FOLDER) == str(folder):
                found.append(Running(process.pid, process.cmdline(), variables))
        except psutil.Error:
            # It has ended meanwhile, or it is somebody else's.
            continue
    return found


def kill(pids: Iterable[int]) -> None:
    """End processes that this test has started, those that are still there."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
