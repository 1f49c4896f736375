"""Whole jobs with parameter servers under load, and every staleness computed again.

    python -m tests.soak --scheme asp|ssp|gsp|all --minutes 10 --workers 4 --servers 1,3

A job of classify.py trains on single images, with many small buckets, while two other processes
keep the processors busy, until a signal stops it after some minutes. No process may have died, no
message may have been refused, and a replay of the job's trace has to compute every staleness.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from runtime.errors import run_stoppable
from tests.soak.replay import Replay, replay
from tests.support.job import Started

SCHEMES = {
    "asp": ("--kv-store", "dist_async"),
    "ssp": ("--kv-store", "dist_ssync", "--staleness", "3"),
    "gsp": ("--kv-store", "dist_gsync"),
}
# Small images and single ones, so that workers push all the time; hours of them.
_TRAINING = (
    "--dataset synthetic --image-size 16 --num-images 2000 --batch-size 1 --epochs 100000 "
    "--lr 0.0001 --threads 1 --frequent 50 --eval-frequency 5 --save-frequency 5"
)
# As many as the launcher allows, of a network of some 15,000 weights.
_BUCKET_ELEMENTS = 1024
_START_SECONDS, _END_SECONDS = 300, 120
# Lines of the launcher, a server and Python when something goes wrong.
_DEATH = re.compile(r"^launch: .* ended with status .*$|^.*Traceback .*$", re.MULTILINE)
_REFUSAL = re.compile(r"^.*refused a message.*$", re.MULTILINE)


class Result(NamedTuple):
    job: str
    replay: Replay
    deaths: list[str]
    refusals: list[str]

    @property
    def is_well(self) -> bool:
        found = self.replay
        is_wrong = found.mismatches or self.deaths or self.refusals
        return bool(found.pushes and found.uneven and not is_wrong)

    def __str__(self) -> str:
        found = self.replay
        line = (
            f"{self.job}: {found.pushes:,} pushes, {found.updates:,} updates of {found.buckets} "
            f"buckets, largest staleness {found.largest}, {found.uneven:,} pulls of unequal "
            f"versions, {len(self.deaths)} deaths, {len(self.refusals)} refusals, "
            f"{found.mismatches} mismatches: {'all is well' if self.is_well else 'WRONG'}"
        )
        return "\n  ".join([line, *self.deaths[:3], *self.refusals[:3], *found.messages])


def run(scheme: str, folder: Path, *, seconds: float, workers: int, servers: int) -> Result:
    """Run a job, which writes into a new folder, for some seconds of training."""
    trace, deaths = folder / "trace", []

    def is_pushing() -> bool:
        files = list(trace.glob("worker-*"))
        return len(files) == workers and any(os.path.getsize(file) > 10_000 for file in files)

    with Started(folder, *_command(scheme, folder, workers, servers)) as job:
        try:
            job.wait_until(is_pushing, _START_SECONDS)
        except AssertionError as error:
            deaths.append(str(error))
        end = time.monotonic() + seconds
        while not deaths and time.monotonic() < end:
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
    if status != 128 + signal.SIGTERM and not deaths:
        deaths.append(f"status {status}: {said[-2000:]}")
    found = replay(trace, is_complete=not deaths)
    return Result(f"{scheme}, {servers} servers", found, deaths, _REFUSAL.findall(said))


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
    program = [sys.executable, "classify.py", *_TRAINING.split(), *SCHEMES[scheme]]
    launch = [sys.executable, "-m", "parallel.launch", *options, "--"]
    return [*launch, *program, "--models-root", folder / "models"]


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> int:
    """Run the jobs of a command line; return 1 if something is wrong."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.soak")
    parser.add_argument("--scheme", choices=[*SCHEMES, "all"], default="all")
    parser.add_argument("--minutes", type=float, default=10, help="of training, for each scheme")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", default="1", help="their number, or several: 1,3")
    options = parser.parse_args()
    schemes = list(SCHEMES) if options.scheme == "all" else [options.scheme]
    is_well = True
    with tempfile.TemporaryDirectory() as folder, busy_loops(2):
        for servers, scheme in itertools.product(map(int, options.servers.split(",")), schemes):
            place, seconds = Path(folder, f"{scheme}-{servers}"), 60 * options.minutes
            result = run(scheme, place, seconds=seconds, workers=options.workers, servers=servers)
            print(result, flush=True)
            is_well &= result.is_well
    return int(not is_well)


if __name__ == "__main__":
    run_stoppable(main)
