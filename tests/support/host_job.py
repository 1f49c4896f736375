"""A training job with a rank on each of two hosts, which a test disturbs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.support.hosts import TwoHosts

ROOT = Path(__file__).resolve().parents[2]
HOST_TIMEOUT = 40
_HOSTS = "host1:1,host2:1"
_HOROVODRUN = ("horovodrun", "-np", "2", "-H", _HOSTS)
_CONFIG = ("bash", "config.sh")
LAUNCHERS = {
    "run.sh": ("bash", "run.sh"),
    "mpirun": ("mpirun", "-np", "2", "-H", _HOSTS, "-bind-to", "none", *_CONFIG),
    "horovodrun": (*_HOROVODRUN, *_CONFIG),
    "horovodrun --gloo": (*_HOROVODRUN, "--gloo", *_CONFIG),
}
# The checkout's launchers, whatever .venv/bin has links to.
_PATH = (ROOT / "setup-utils/launchers", Path(sys.prefix) / "bin",
         *"/usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin".split())  # fmt: skip
_LOOK_SECONDS = 0.1


class Process(NamedTuple):
    """A process of a host: its number in a list of hosts, and what it runs."""

    host: int
    pid: int
    words: list[str]

    @property
    def is_rank(self) -> bool:
        """Whether it trains."""
        return len(self.words) > 1 and self.words[1].endswith("train.py")


class HostJob:
    """One job; what it prints is in a file beside the hosts' keys."""

    def __init__(self, two: TwoHosts, launcher: str, models: Path, *options: object) -> None:
        """Start it, or start it again.

        Args:
            two: the hosts; the launcher runs on the first.
            launcher: one of ``LAUNCHERS``.
            models: the folder of the run.
            options: of the program, or of run.sh.
        """
        self.two = two
        # As each host sees it.
        self.views = [Path(f"/proc/{host.server_pid}/root{models}") for host in two.all]
        self.output = two.folder / f"{models.name}.output"
        command = two.first.inside(
            "sh", "-c", 'cd "$0" && exec "$@"', ROOT, *LAUNCHERS[launcher], *options
        )
        choices = {"NETWORK": "tiny", "MODELS_ROOT": str(models), "HOSTS": _HOSTS}
        choices.update(HOST_TIMEOUT=str(HOST_TIMEOUT), OMP_NUM_THREADS="1", VIRTUAL_ENV=sys.prefix)
        path = ":".join(map(str, _PATH))
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={"HOME": str(two.folder / "home"), "PATH": path, **choices},
                start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        """Return everything that went to the screen."""
        return self.output.read_text(errors="replace")

    def updates(self) -> int:
        """How many updates have been reported, also those of an earlier start."""
        path = self.views[0] / "logs/rank-0000.log"
        return path.read_text().count("  loss ") if path.exists() else 0

    def processes(self) -> list[Process]:
        """Return what runs on the hosts, without the ssh servers."""
        found = []
        for number, host in enumerate(self.two.all):
            for pid in host.processes():
                try:
                    process = Process(number, pid, psutil.Process(pid).cmdline())
                except psutil.Error:
                    continue
                # An ended process has no words any more.
                if process.words and pid != host.server_pid:
                    found.append(process)
        return found

    def find(self, matches: Callable[[Process], object]) -> Process:
        """Return the only process, or the first of them, of which something holds."""
        return next(filter(matches, self.processes()))

    def wait_until(self, true: Callable[[], object], seconds: float) -> None:
        """Wait for something to become true while the job runs."""
        end = time.monotonic() + seconds
        while not true():
            assert self.process.poll() is None, f"the job has ended: {self.said()[-3000:]}"
            assert time.monotonic() < end, f"waited in vain: {self.said()[-3000:]}"
            time.sleep(_LOOK_SECONDS)

    def wait_for_the_end_of(self, processes: Iterable[Process], seconds: float) -> list[Process]:
        """Wait until these have ended, at most so long; returns those that have not."""
        end = time.monotonic() + seconds
        left = list(processes)
        while left and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
            running = self.processes()
            left = [process for process in left if process in running]
        return left

    def __enter__(self) -> HostJob:
        """Return the job."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind, whatever state the job is in."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for process in self.processes():
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
