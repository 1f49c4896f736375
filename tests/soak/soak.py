"""One job with parameter servers that trains for a while, and the replay of its trace."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.soak.replay import Replay, replay
from tests.support.job import Started

SCHEMES = {
    "asp": ("--kv-store", "dist_async"),
    "ssp": ("--kv-store", "dist_ssync", "--staleness", "3"),
    "gsp": ("--kv-store", "dist_gsync"),
}
# Small images and single ones, so that workers push all the time; hours of them.
_TRAINING = (
    *("--dataset", "synthetic", "--image-size", "16", "--num-images", "2000", "--batch-size", "1"),
    *("--epochs", "100000", "--lr", "0.0001", "--threads", "1", "--frequent", "50"),
    *("--eval-frequency", "5", "--save-frequency", "5"),
)
# As many as the launcher allows, of a network of some 15,000 weights.
_BUCKET_ELEMENTS = "1024"
_START_SECONDS = 300
_END_SECONDS = 120
_STATUS = 128 + signal.SIGTERM
# Lines of the launcher, a server and Python when something goes wrong.
_DEATH = re.compile(r"^launch: .* ended with status .*$|^.*Traceback .*$", re.MULTILINE)
_REFUSAL = re.compile(r"^.*refused a message.*$", re.MULTILINE)


@dataclass
class Result:
    """The result of a job."""

    scheme: str
    servers: int
    replay: Replay
    deaths: list[str]
    refusals: list[str]

    @property
    def is_well(self) -> bool:
        return bool(
            self.replay.pushes
            and self.replay.uneven
            and not (self.replay.mismatches or self.deaths or self.refusals)
        )

    def __str__(self) -> str:
        found = self.replay
        line = (
            f"{self.scheme}, {self.servers} servers: {found.pushes:,} pushes, "
            f"{found.updates:,} updates of {found.buckets} buckets, largest staleness "
            f"{found.largest}, {found.uneven:,} pulls of unequal versions, {len(self.deaths)} "
            f"deaths, {len(self.refusals)} refusals, {found.mismatches} mismatches: "
            f"{'all is well' if self.is_well else 'WRONG'}"
        )
        return "\n  ".join([line, *self.deaths[:3], *self.refusals[:3], *found.messages])


def run(
    scheme: str,
    folder: Path,
    *,
    seconds: float,
    workers: int,
    servers: int,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Result:
    """Run a job, which writes into a new folder, for some seconds of training, or until stopped."""
    trace, deaths = folder / "trace", []
    with Started(folder, *_command(scheme, folder, workers, servers)) as job:
        try:
            job.wait_until(lambda: _is_pushing(trace, workers) or is_stopped(), _START_SECONDS)
        except AssertionError as error:
            deaths.append(str(error))
        end = time.monotonic() + seconds
        while not deaths and time.monotonic() < end and not is_stopped():
            if job.process.poll() is not None:
                break
            time.sleep(0.2)
        job.process.send_signal(signal.SIGTERM)
        try:
            status = job.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            status, deaths = -1, [*deaths, "it did not end"]
        said = job.said()
    deaths += _DEATH.findall(said)
    if status != _STATUS and not deaths:
        deaths.append(f"status {status}: {said[-2000:]}")
    found = replay(trace, is_complete=not deaths)
    return Result(scheme, servers, found, deaths, _REFUSAL.findall(said))


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep processors busy with other work."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _command(scheme: str, folder: Path, workers: int, servers: int) -> list[object]:
    folder.mkdir(parents=True)
    options: list[object] = ["-n", workers, "-s", servers, "--trace", folder / "trace"]
    options += ["--bucket-elements", _BUCKET_ELEMENTS]
    if scheme == "gsp":
        # Pairs, of which the last may have one member.
        hosts = ["127.0.0.1"] * workers
        pairs = [" ".join(hosts[first : first + 2]) for first in range(0, workers, 2)]
        (folder / "groups").write_text("".join(f"{pair}\n" for pair in pairs))
        options += ["--groups", folder / "groups"]
    launch = [sys.executable, "-m", "parallel.launch", *options, "--", sys.executable]
    program = ["classify.py", *_TRAINING, *SCHEMES[scheme], "--models-root", folder / "models"]
    return [*launch, *program]


def _is_pushing(trace: Path, workers: int) -> bool:
    files = list(trace.glob("worker-*"))
    return len(files) == workers and any(os.path.getsize(file) > 10_000 for file in files)
