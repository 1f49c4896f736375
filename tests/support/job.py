"""A training job under a launcher, which a test disturbs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.support import launch, processes
from tests.support.launch import ROOT, clean_environment

_LOOK_SECONDS = 0.05
_RANK_NAMES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK")


class Started(AbstractContextManager[Any]):
    """A command that runs, with all its processes, which are known by its folder."""

    def __init__(self, folder: Path, *command: object, **variables: str) -> None:
        self.folder, self.output = folder, folder / "output"
        folder.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*map(str, command)], cwd=ROOT, stdout=output, stderr=output,
                env={**clean_environment(), **variables, processes.FOLDER: str(folder)},
                start_new_session=True,
            )  # fmt: skip

    def running(self) -> list[processes.Running]:
        return processes.of_job(self.folder)

    def said(self) -> str:
        """Return everything that went to the screen."""
        return self.output.read_text(errors="replace")

    def wait_until(self, true: Callable[[], object], seconds: float = 150) -> None:
        """Wait for something to become true while the job runs."""
        end = time.monotonic() + seconds
        while not true():
            assert self.process.poll() is None, f"the job has ended: {self.said()}"
            assert time.monotonic() < end, f"waited in vain: {self.said()}"
            time.sleep(_LOOK_SECONDS)

    def wait(self, seconds: float = 150) -> int:
        """Wait for the end and return the launcher's status."""
        return self.process.wait(seconds)

    def end(self) -> None:
        """Leave nothing behind, whatever state the job is in."""
        # Launchers before ranks, so that none starts another.
        pids = [self.process.pid] if self.process.poll() is None else []
        processes.kill([*pids, *(running.pid for running in self.running())])
        self.process.wait(30)

    def __exit__(self, *_: object) -> None:
        self.end()


class Job(Started):
    """Ranks of a program that write into a folder."""

    def __init__(
        self, launcher: str, ranks: int, models: Path, *options: object, program: str = "train.py"
    ) -> None:
        """Start a program by "run.sh", or horovodrun's "--gloo" or "--mpi"."""
        self.models, self.launcher, self._program = models, launcher, program
        command = ["bash", "run.sh" if launcher == "run.sh" else "config.sh"]
        if program != "train.py":
            command = [sys.executable, *["-m"] * (not program.endswith(".py")), program]
            options = (*options, "--models-root", models)
        if launcher != "run.sh":
            command = [*launch.ranks(launcher, ranks), *command]
        super().__init__(models, *command, *options, NETWORK="tiny", NP=str(ranks))

    def processes(self) -> dict[int, int]:
        """Return the ranks' processes: rank to process id."""
        return {
            int(running.variables[name]): running.pid
            for running in self.running()
            if self._program in [Path(word).name for word in running.words]
            for name in _RANK_NAMES
            if name in running.variables
        }

    def log(self, rank: int) -> str:
        path = self.models / "logs" / f"rank-{rank:04d}.log"
        return path.read_text() if path.exists() else ""
