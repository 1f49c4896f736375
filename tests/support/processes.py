"""Processes that tests have started: of a job, by its folder, and whether they are still there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

FOLDER = "MODELS_ROOT"
"""The variable that names the folder of a job; no other job has the same one."""


class Running(NamedTuple):
    """A process: its command line, empty for a moment while it ends, and its first environment."""

    pid: int
    words: list[str]
    variables: dict[str, str]


def of_job(folder: Path) -> list[Running]:
    found = []
    for process in psutil.process_iter():
        # It may have ended meanwhile, or be somebody else's.
        with suppress(psutil.Error):
            variables = process.environ()
            if variables.get(FOLDER) == str(folder):
                found.append(Running(process.pid, process.cmdline(), variables))
    return found


def is_alive(pid: int) -> bool:
    """A zombie, for which nobody has waited yet, is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def left(pids: Iterable[int], seconds: float = 20) -> list[int]:
    """Those that are still alive after a time; it is less if all have ended."""
    deadline = time.monotonic() + seconds
    alive = list(pids)
    while (alive := [pid for pid in alive if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def kill(pids: Iterable[int]) -> None:
    """End processes that this test has started, those that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
