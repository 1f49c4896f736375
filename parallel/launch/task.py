"""One process of a job, and how it is started: on this machine or on another one, over ssh."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from parallel.parameter_server.assignment import SCHEDULER

# What of the environment goes along to other machines; on this one everything does.
_TRAVELS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_TRAVELS_PREFIXES = ("MXNET_", "HOROVOD_", "OMP_", "NUMBA_", "PS_")


@dataclass(frozen=True)
class Task:
    """One process of a job."""

    role: str
    """Worker, server or scheduler."""
    number: int
    """Among those of its role."""
    host: str
    """Where it runs."""
    sharers: int
    """How many share the processors of its machine."""
    command: Sequence[str]
    variables: Mapping[str, str]
    """What it is told through its environment."""

    def __str__(self) -> str:
        """Name it."""
        return self.role if self.role == SCHEDULER else f"{self.role} {self.number}"


Starter = Callable[[Task], tuple[list[str], Optional[dict[str, str]]]]
"""Gives the command of this machine that runs a task under a guard, and its environment."""


def locally(task: Task) -> tuple[list[str], Optional[dict[str, str]]]:
    """Run a task on this machine."""
    return _guarded(task), {**os.environ, **task.variables}


def by_ssh(task: Task) -> tuple[list[str], Optional[dict[str, str]]]:
    """Run a task on its host, in the same folder; with keys only, nobody is asked for a password.

    The scheduler stays on this machine, whose address the others have been given.
    """
    if task.role == SCHEDULER:
        return locally(task)
    along = {
        name: value
        for name, value in os.environ.items()
        if name in _TRAVELS or name.startswith(_TRAVELS_PREFIXES)
    }
    words = [f"{name}={value}" for name, value in {**along, **task.variables}.items()]
    command = f"cd {shlex.quote(str(Path.cwd()))} && exec env {shlex.join(words + _guarded(task))}"
    # A connection that is gone shall be noticed.
    options = ("BatchMode=yes", "ServerAliveInterval=5", "ServerAliveCountMax=3")
    return ["ssh", *(f"-o{option}" for option in options), task.host, command], None


def _guarded(task: Task) -> list[str]:
    return [sys.executable, "-m", "parallel.launch.guard", str(task.sharers), *task.command]
