"""Starts the scheduler, the servers and the workers of a job, without the launcher."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parallel.launch.launcher import SERVE
from parallel.launch.network_interface import free_port
from parallel.parameter_server.assignment import SCHEDULER, SERVER, WORKER, Assignment
from tests.support.job import Watched
from tests.support.launch import ROOT, clean_environment


class ServerJob(Watched):
    """A scheduler, parameter servers and workers as processes on 127.0.0.1."""

    def __init__(
        self, folder: Path, *command: object, workers: int, servers: int = 1, **assignment: Any
    ) -> None:
        """Start it: outputs go into the folder, and each worker is Python with the command."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, here = folder, "127.0.0.1"
        self._assignment = replace(
            Assignment(WORKER, here, free_port(here), here, "lo", workers, servers), **assignment
        )
        self.others = [self._start(SERVE, SCHEDULER, 0)]
        self.others += [self._start(SERVE, SERVER, number) for number in range(servers)]
        program = [sys.executable, *map(str, command)]
        self.workers = [self._start(program, WORKER, number) for number in range(workers)]

    def _start(self, command: Sequence[str], role: str, number: int) -> subprocess.Popen[bytes]:
        assignment = replace(self._assignment, role=role, worker=number if role == WORKER else 0)
        variables = {**clean_environment(), "OMP_NUM_THREADS": "1", **assignment.variables()}
        with (self._folder / f"{role}-{number}").open("wb") as output:
            return subprocess.Popen(
                command, cwd=ROOT, env=variables, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    def wait(self, seconds: float = 120) -> list[int]:
        """Wait for the workers; returns their statuses."""
        return [process.wait(seconds) for process in self.workers]

    def is_running(self) -> bool:
        return all(process.poll() is None for process in self.workers)

    def said(self) -> str:
        files = sorted(path for path in self._folder.iterdir() if path.is_file())
        return "\n".join(f"{file.name}:\n{file.read_text()}" for file in files)

    def said_by(self, worker: int) -> str:
        return (self._folder / f"{WORKER}-{worker}").read_text()

    def __exit__(self, *_: object) -> None:
        for process in (*self.workers, *self.others):
            process.kill()
            process.wait(30)
