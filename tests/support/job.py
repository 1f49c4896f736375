"""Training jobs, which a test disturbs."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.support import launch
from tests.support.launch import ROOT, clean_environment

# The variable that names the folder of a job; no other job has the same one.
_FOLDER = "MODELS_ROOT"
_RANK_NAMES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK")


def holder(models: Path) -> str:
    """Return what the run that has the lock of a folder says of itself; empty if none has it."""
    with (models / "run.lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read()
    return ""


class Running(NamedTuple):
    """A process: its command line, empty for a moment while it ends, and its first environment."""

    pid: int
    words: list[str]
    variables: dict[str, str]


class Watched:
    """Processes whose output is in a file."""

    process: subprocess.Popen[Any]
    output: Path

    def __enter__(self) -> Any:
        return self

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def is_running(self) -> bool:
        return self.process.poll() is None

    def wait_until(
        self, true: Callable[[], object], seconds: float = 250, *, may_end: bool = False
    ) -> None:
        """Wait for something to become true while the job runs."""
        end = time.monotonic() + seconds
        while not true():
            assert may_end or self.is_running(), f"the job has ended: {self.said()[-3000:]}"
            assert time.monotonic() < end, f"waited in vain: {self.said()[-3000:]}"
            time.sleep(0.05)


class Started(Watched):
    """A command that runs, with all its processes, which are known by its folder."""

    def __init__(self, folder: Path, *command: object, **variables: str) -> None:
        self.folder, self.output = folder, folder / "output"
        folder.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*map(str, command)], cwd=ROOT, stdout=output, stderr=output,
                env={**clean_environment(), **variables, _FOLDER: str(folder)},
                start_new_session=True,
            )  # fmt: skip

    def running(self) -> list[Running]:
        # None for what cannot be read of the processes of others.
        everyone = [one.info for one in psutil.process_iter(["pid", "cmdline", "environ"])]
        found = [one for one in everyone if (one["environ"] or {}).get(_FOLDER) == str(self.folder)]
        return [Running(one["pid"], one["cmdline"] or [], one["environ"]) for one in found]

    def wait(self, seconds: float = 150) -> int:
        """Wait for the end and return the launcher's status."""
        return self.process.wait(seconds)

    def end(self) -> None:
        """Leave nothing behind, whatever state the job is in."""
        # Launchers before ranks, so that none starts another.
        pids = [self.process.pid] if self.is_running() else []
        for pid in [*pids, *(running.pid for running in self.running())]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)

    def __exit__(self, *_: object) -> None:
        self.end()


class Job(Started):
    """Ranks of a program that write into a folder."""

    def __init__(
        self, launcher: str, ranks: int, models: Path, *options: object, program: str = "train.py"
    ) -> None:
        """Start a program by "run.sh", or horovodrun's "--gloo" or "--mpi"."""
        self.models, self._program = models, program
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
