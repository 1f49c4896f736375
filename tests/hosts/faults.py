"""Disturbs jobs on two hosts at random moments: each has to end in time, or to go on.

    python -m tests.hosts.faults --faults 20 --seed 1

Each round starts a job by one of the launchers and disturbs it: a process is killed on either host,
the hosts are cut off from each other for good or for twenty seconds, the network between them
delays and loses frames, or the disk fills up. A job that ends has to do so in the promised time and
to say which host or rank is why, to leave no process on either host and an intact checkpoint; then
``run.sh --restarts``, or a second start by the same launcher, goes on. Whatever happened, the last
checkpoint has to be that of an undisturbed job, byte by byte.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from tests.support.host_job import HOST_TIMEOUT, LAUNCHERS, HostJob, Process
from tests.support.hosts import TwoHosts
from training.checkpoint.layout import Checkpoint

UPDATES, INTERVAL = 30, 5
OPTIONS = (
    "--debug", "--num-classes", 60, "--num-images", 60, "--embedding-size", 16, "--batch-size", 4,
    "--save-interval", INTERVAL, "--frequent", 1, "--verbose", 10_000, "--sample-ratio", 0.5,
    "--max-update", UPDATES, "--stall-timeout", 60,
)  # fmt: skip
_LAST = f"checkpoints/update-{UPDATES:08d}"
_LONGEST = 300.0
# The last updates are too near to the end for a fault.
_MOST_UPDATES = 18
_DISTURBED_SECONDS = 20.0
# What docs/reliability.md promises.
_AFTER_DEATH = 30.0
_AFTER_CUT = HOST_TIMEOUT + 60.0
_DISK = "size=400m"
_MPI = tuple(name for name in LAUNCHERS if name != "horovodrun --gloo")
_SSH_SESSION = re.compile("sshd: .*@notty")


class Scene(NamedTuple):
    """A job that trains, and where a fault may happen."""

    job: HostJob
    launcher: str
    rank: int
    """Of the process that a fault is about, if it is about one."""


class Fault(NamedTuple):
    """What happens to a job.

    Attributes:
        begin: makes it happen.
        end: removes its cause, so that the job can be started again.
        seconds: in which the job ends; None if it goes on.
        says: what the job says then, by launcher ("" for the others): a pattern.
        launchers: those to which it can happen.
    """

    begin: Callable[[Scene], None]
    end: Callable[[Scene], None] = lambda _: None
    seconds: Optional[float] = None
    says: dict[str, str] = {}
    launchers: Sequence[str] = tuple(LAUNCHERS)


def _kill(matches: Callable[[Scene, Process], object]) -> Callable[[Scene], None]:
    def begin(scene: Scene) -> None:
        victim = scene.job.find(lambda process: matches(scene, process))
        os.kill(victim.pid, signal.SIGKILL)

    return begin


def _is_launcher(_: Scene, process: Process) -> bool:
    words = process.words
    return words[0] == "mpirun" or (len(words) > 1 and words[1].endswith("/horovodrun.py"))


def _disturb(**effects: float) -> Callable[[Scene], None]:
    return lambda scene: scene.job.two.disturb(**effects)


def _disturb_for_a_while(**effects: float) -> Callable[[Scene], None]:
    def begin(scene: Scene) -> None:
        scene.job.two.disturb(**effects)
        time.sleep(_DISTURBED_SECONDS)
        scene.job.two.disturb()

    return begin


def _fill_disk(scene: Scene) -> None:
    with _filler(scene).open("wb") as file, suppress_full():
        while True:
            file.write(bytes(1 << 20))
            file.flush()


@contextmanager
def suppress_full() -> Iterator[None]:
    """Go on after the error of a full disk."""
    try:
        yield
    except OSError:
        return


def _filler(scene: Scene) -> Path:
    return scene.job.models.parent / "filler"


FAULTS = {
    "kill a rank": Fault(
        _kill(lambda scene, process: process.is_rank and process.host == scene.rank),
        seconds=_AFTER_DEATH,
        says={
            "": r"rank {rank} with PID \d+ on node {host} exited on signal 9",
            "horovodrun --gloo": r"rank {rank} on {host} has ended with status 137",
        },
    ),
    "kill the launcher": Fault(
        _kill(_is_launcher), seconds=_AFTER_DEATH, says={"run.sh": "run ended with status 137"}
    ),
    "kill Open MPI's daemon": Fault(
        _kill(lambda _, process: process.host == 1 and process.words[0].endswith("/orted")),
        seconds=_AFTER_DEATH,
        says={"": "on node +host2|error: on host2 a signal has ended"},
        launchers=_MPI,
    ),
    "kill the ssh session": Fault(
        _kill(lambda _, process: process.host == 1 and _SSH_SESSION.match(process.words[0])),
        seconds=_AFTER_DEATH,
        says={"": "error: the connection to host2 is lost"},
    ),
    "cut the link": Fault(
        _disturb(loss=1.0),
        _disturb(),
        seconds=_AFTER_CUT,
        says={"": "error: the connection to host2 is lost"},
    ),
    "cut the link for 20 s": Fault(_disturb_for_a_while(loss=1.0)),
    "delay 50 +- 20 ms, lose 1 %": Fault(
        _disturb_for_a_while(delay=0.05, spread=0.02, loss=0.01)
    ),
    "fill the disk": Fault(
        _fill_disk,
        lambda scene: _filler(scene).unlink(),
        seconds=_AFTER_DEATH,
        says={"": "No space left on device"},
    ),
}  # fmt: skip


class Round(NamedTuple):
    """One fault, chosen at random.

    Attributes:
        fault: one of ``FAULTS``.
        launcher: one of ``LAUNCHERS``.
        rank: that it is about.
        updates: after so many.
        delay: seconds to wait after that.
    """

    fault: str
    launcher: str
    rank: int
    updates: int
    delay: float


def choose(rng: random.Random) -> Iterator[Round]:
    """Yield rounds without end; each fault once before one comes twice."""
    launchers = {name: itertools.cycle(rng.sample(fault.launchers, len(fault.launchers)))
                 for name, fault in FAULTS.items()}  # fmt: skip
    while True:
        for name in rng.sample(list(FAULTS), len(FAULTS)):
            updates, delay = rng.randint(6, _MOST_UPDATES), rng.uniform(0, 0.5)
            yield Round(name, next(launchers[name]), rng.randint(0, 1), updates, delay)


def run(rounds: Sequence[Round], two: TwoHosts, folder: Path) -> list[str]:
    """Disturb a job in each round, and return a line for each, see ``is_right``.

    Args:
        rounds: what is to happen.
        two: the hosts, relayed.
        folder: for the runs; it may be filled up.
    """
    # The first process after an installation compiles kernels that may round otherwise.
    for name, updates in (("warm-up", 1), ("undisturbed", UPDATES)):
        with HostJob(two, "run.sh", folder / name, *OPTIONS, "--max-update", updates) as job:
            assert job.process.wait(_LONGEST) == 0, job.said()
    expected = Checkpoint(folder / "undisturbed" / _LAST)
    lines = []
    for number, chosen in enumerate(rounds, start=1):
        try:
            result = _round(chosen, two, folder / f"run-{number}", expected)
        except Exception as error:
            result = f"FAILED: {type(error).__name__}: {error}"
        finally:
            two.disturb()
        what = f"{chosen.launcher}, {chosen.fault} (rank {chosen.rank})"
        lines.append(f"{number}. {what} after {chosen.updates} updates: {result}")
        print(lines[-1], flush=True)
    return lines


def is_right(line: str) -> bool:
    """Whether a line of ``run`` says that a job had the right end."""
    return line.endswith((", right", ", right on one host"))


def _round(chosen: Round, two: TwoHosts, models: Path, expected: Checkpoint) -> str:
    fault = FAULTS[chosen.fault]
    restarts = ("--restarts", 1) if chosen.launcher == "run.sh" else ()
    with HostJob(two, chosen.launcher, models, *OPTIONS, *restarts) as job:
        scene = Scene(job, chosen.launcher, chosen.rank)
        job.wait_until(lambda: job.updates() >= chosen.updates, _LONGEST)
        time.sleep(chosen.delay)
        before = _of_attempt(job)
        began = time.monotonic()
        fault.begin(scene)
        how = "went on"
        if fault.seconds is not None:
            how = f"ended after {_wait_for_the_end(scene, fault, before, began):.0f} s"
            fault.end(scene)
            how += f", {_verify_checkpoint(models)} intact"
        # A full disk is an error of the user's, after which run.sh does not start the ranks again.
        status = job.process.wait(_LONGEST) if fault.seconds is None or restarts else 1
    if fault.seconds is None:
        assert status == 0, f"status {status}: {job.said()[-3000:]}"
    elif status != 0:
        with HostJob(two, chosen.launcher, models, *OPTIONS) as job:
            assert job.process.wait(_LONGEST) == 0, job.said()[-3000:]
    found = Checkpoint(models / _LAST)
    same = found.manifest.files == expected.manifest.files
    same &= found.manifest.values == expected.manifest.values
    if chosen.fault == "cut the link" and restarts:
        # It went on with the ranks of one host.
        assert "run.sh: host2 cannot be reached by ssh; the run goes on without" in job.said()
        assert found.manifest.world_size == 1 and found.manifest.update == UPDATES
        return f"{how}, right on one host"
    assert same, f"{how}: ANOTHER RESULT"
    return f"{how}, right"


def _of_attempt(job: HostJob) -> list[Process]:
    """All processes that have to end with this attempt, which run.sh may outlive."""
    return [process for process in job.processes() if process.words[:2] != ["bash", "run.sh"]]


def _wait_for_the_end(
    scene: Scene, fault: Fault, before: Sequence[Process], began: float
) -> float:
    """Check how both hosts end; returns after how many seconds the last process did."""
    is_cut = fault is FAULTS["cut the link"]
    # The ssh server learns of the end when the link is back, or when TCP gives up.
    waited = [process for process in before
              if not (is_cut and _SSH_SESSION.match(process.words[0]))]  # fmt: skip
    left = scene.job.wait_for_the_end_of(waited, fault.seconds + began - time.monotonic())
    assert not left, f"after {fault.seconds} s there are {left}: {scene.job.said()[-3000:]}"
    seconds = time.monotonic() - began
    if scene.launcher != "run.sh":
        status = scene.job.process.wait(10)
        assert status != 0, "the launcher ended with status 0"
    pattern = fault.says.get(scene.launcher, fault.says.get("", ""))
    pattern = pattern.format(rank=scene.rank, host=f"host{scene.rank + 1}")
    assert re.search(pattern, scene.job.said()), f"no {pattern!r} in {scene.job.said()[-4000:]}"
    return seconds


def _verify_checkpoint(models: Path) -> str:
    newest = max((models / "checkpoints").glob("update-*"))
    checkpoint = Checkpoint(newest)
    for rank in range(checkpoint.manifest.world_size):
        checkpoint.verify(rank)
    return newest.name


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own, which may be filled up; both hosts see it if they start later."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run a campaign; return 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.faults")
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of the name of a fault")
    parser.add_argument("--launcher", default="", help="the name of a launcher")
    options = parser.parse_args(argv)
    chosen = (
        one for one in choose(random.Random(options.seed))
        if options.only in one.fault and options.launcher in ("", one.launcher)
    )  # fmt: skip
    rounds = list(itertools.islice(chosen, options.faults))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, small_disk(Path(name) / "disk") as disk:
        with TwoHosts(Path(name) / "hosts", relayed=True) as two:
            lines = run(rounds, two, disk)
    right = sum(map(is_right, lines))
    print(f"{right} of {len(lines)} had the right end, {time.monotonic() - began:.0f} s")
    return 0 if right == len(lines) else 1


if __name__ == "__main__":
    sys.exit(main())
