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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Optional

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
_PATH = (ROOT / "setup-utils/launchers", Path(sys.prefix) / "bin")
_LOOK_SECONDS = 0.1


UPDATES, INTERVAL = 30, 5
OPTIONS = (
    "--debug", "--num-classes", 60, "--num-images", 60, "--embedding-size", 16, "--batch-size", 4,
    "--save-interval", INTERVAL, "--frequent", 1, "--verbose", 10_000, "--sample-ratio", 0.5,
    "--max-update", UPDATES, "--stall-timeout", 60,
)  # fmt: skip
_LAST = f"checkpoints/update-{UPDATES:08d}"
_LONGEST = 300.0
# There is a checkpoint, and the end is not too near.
_FEWEST_UPDATES, _MOST_UPDATES = 8, 18
_DISTURBED_SECONDS = 20.0
# What docs/reliability.md promises.
_AFTER_DEATH = 30.0
_AFTER_CUT = HOST_TIMEOUT + 60.0
_DISK = "size=400m"
_MPI = tuple(name for name in LAUNCHERS if name != "horovodrun --gloo")
_SSH_SESSION = re.compile("sshd: .*@notty")


class Process(NamedTuple):
    """A process of a host: its number in a list of hosts, and what it runs."""

    host: int
    pid: int
    words: list[str]

    @property
    def program(self) -> str:
        """The script that Python runs."""
        return self.words[1] if len(self.words) > 1 else ""


class HostJob:
    """One job, by one of ``LAUNCHERS`` on the first host, started or started again."""

    def __init__(self, two: TwoHosts, launcher: str, models: Path, *options: object) -> None:
        self.two = two
        # As each host sees it.
        self.views = [Path(f"/proc/{host.server_pid}/root{models}") for host in two.all]
        self.output = two.folder / f"{models.name}.output"
        choices = {"NETWORK": "tiny", "MODELS_ROOT": str(models), "HOSTS": _HOSTS}
        choices.update(HOST_TIMEOUT=str(HOST_TIMEOUT), OMP_NUM_THREADS="1", VIRTUAL_ENV=sys.prefix)
        with self.output.open("ab") as output:
            self.process = two.start(
                *LAUNCHERS[launcher], *options, folder=ROOT, path=_PATH, variables=choices,
                stdout=output, stderr=output, start_new_session=True,
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
            for pid in set(host.processes()) - {host.server_pid}:
                with suppress(psutil.Error):
                    # An ended process has no words any more.
                    if words := psutil.Process(pid).cmdline():
                        found.append(Process(number, pid, words))
        return found

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
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


class Scene(NamedTuple):
    """A job that trains, and where a fault may happen."""

    job: HostJob
    launcher: str
    rank: int
    """Of the process that a fault is about, if it is about one."""


class Fault(NamedTuple):
    """What happens to a job; ``seconds`` are those in which it ends, None if it goes on."""

    begin: Callable[[Scene], None]
    end: Callable[[Scene], None] = lambda _: None
    seconds: Optional[float] = None
    says: dict[str, str] = {}
    launchers: Sequence[str] = tuple(LAUNCHERS)


def _kill(matches: Callable[[Scene, Process], object]) -> Callable[[Scene], None]:
    def begin(scene: Scene) -> None:
        victim = next(one for one in scene.job.processes() if matches(scene, one))
        os.kill(victim.pid, signal.SIGKILL)

    return begin


def _is_launcher(_: Scene, process: Process) -> bool:
    return process.words[0] == "mpirun" or process.program.endswith("/horovodrun.py")


def _disturb(seconds: float = 0, **effects: float) -> Callable[[Scene], None]:
    """Disturb the network for some time, or for good."""

    def begin(scene: Scene) -> None:
        scene.job.two.disturb(**effects)
        if seconds:
            time.sleep(seconds)
            scene.job.two.disturb()

    return begin


def _fill_disk(scene: Scene) -> None:
    with suppress(OSError), _filler(scene).open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))


def _filler(scene: Scene) -> Path:
    return scene.job.views[scene.rank].parent / "filler"


FAULTS = {
    "kill a rank": Fault(
        _kill(lambda scene, one: one.program.endswith("train.py") and one.host == scene.rank),
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
    "cut the link for 20 s": Fault(_disturb(_DISTURBED_SECONDS, loss=1.0)),
    "delay 50 +- 20 ms, lose 1 %": Fault(
        _disturb(_DISTURBED_SECONDS, delay=0.05, spread=0.02, loss=0.01)
    ),
    "fill the disk": Fault(
        _fill_disk,
        lambda scene: _filler(scene).unlink(),
        seconds=_AFTER_DEATH,
        says={"": "No space left on device"},
    ),
}  # fmt: skip


class Round(NamedTuple):
    """One fault: of a rank, so many updates and seconds after the start."""

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
            updates, delay = rng.randint(_FEWEST_UPDATES, _MOST_UPDATES), rng.uniform(0, 0.5)
            yield Round(name, next(launchers[name]), rng.randint(0, 1), updates, delay)


def run(rounds: Iterable[Round], two: TwoHosts, folder: Path) -> list[str]:
    """Disturb a job in each round, and return a line for each, see ``is_right``."""
    # The first process after an installation compiles kernels that may round otherwise.
    for name, updates in (("warm-up", 1), ("undisturbed", UPDATES)):
        with HostJob(two, "run.sh", folder / name, *OPTIONS, "--max-update", updates) as job:
            assert job.process.wait(_LONGEST) == 0, job.said()
    expected = _results(job)
    assert len(expected) == 3, expected.keys()
    lines = []
    for number, chosen in enumerate(rounds, 1):
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


def _results(job: HostJob) -> dict[str, bytes]:
    """The last weights, not the best, and the arrays of all ranks in the last checkpoint."""
    found = [path for view in job.views for pattern in ("model-0*.params", f"{_LAST}/rank-*.bin")
             for path in view.glob(pattern)]  # fmt: skip
    return {path.name: path.read_bytes() for path in found}


def is_right(line: str) -> bool:
    """Whether a line of ``run`` says that a job had the right end."""
    return line.endswith((", right", ", right on one host"))


def _round(
    chosen: Round, two: TwoHosts, models: Path, expected: dict[str, bytes]
) -> str:
    fault = FAULTS[chosen.fault]
    restarts = ("--restarts", 1) if chosen.launcher == "run.sh" else ()
    with HostJob(two, chosen.launcher, models, *OPTIONS, *restarts) as job:
        scene = Scene(job, chosen.launcher, chosen.rank)
        job.wait_until(lambda: job.updates() >= chosen.updates, _LONGEST)
        time.sleep(chosen.delay)
        before = job.processes()
        began = time.monotonic()
        fault.begin(scene)
        if fault.seconds is None:
            assert job.process.wait(_LONGEST) == 0, job.said()[-3000:]
            assert _results(job) == expected, "ANOTHER RESULT"
            return "went on, right"
        how = f"ended after {_wait_for_the_end(scene, fault, before, began):.0f} s"
        is_cut = fault is FAULTS["cut the link"]
        if is_cut and restarts:
            # The other host is left out as long as the link is cut.
            job.wait_until(lambda: "run.sh: host2 cannot be reached by ssh" in job.said(), 120)
        fault.end(scene)
        how += f", {_verify_checkpoint(job)} intact"
        # A full disk is an error of the user's, after which run.sh does not start the ranks again.
        status = job.process.wait(_LONGEST) if restarts else 2
        assert status in (0, 2), job.said()[-3000:]
        how += "" if status else ", restarted"
    if is_cut and status == 0:
        assert _results(job).keys() == expected.keys() - {"rank-0001.bin"}
        return f"{how}, right on one host"
    if status:
        with HostJob(two, chosen.launcher, models, *OPTIONS) as job:
            assert job.process.wait(_LONGEST) == 0, job.said()[-3000:]
    rest = [process for process in job.processes() if not _SSH_SESSION.match(process.words[0])]
    assert not job.wait_for_the_end_of(rest, _AFTER_DEATH), job.processes()
    assert ".broken" not in job.said(), job.said()[-3000:]
    assert _results(job) == expected, f"{how}: ANOTHER RESULT"
    return f"{how}, right"


def _wait_for_the_end(
    scene: Scene, fault: Fault, before: Sequence[Process], began: float
) -> float:
    """Check how both hosts end; returns after how many seconds the last process did."""
    is_cut = fault is FAULTS["cut the link"]
    # run.sh may outlive its attempt. The ssh server learns of the end when the link is back, or
    # when TCP gives up.
    waited = [one for one in before if one.words[:2] != ["bash", "run.sh"]
              and not (is_cut and _SSH_SESSION.match(one.words[0]))]  # fmt: skip
    limit = fault.seconds or 0.0
    left = scene.job.wait_for_the_end_of(waited, limit + began - time.monotonic())
    assert not left, f"after {limit} s there are {left}: {scene.job.said()[-3000:]}"
    seconds = time.monotonic() - began
    if scene.launcher != "run.sh":
        assert scene.job.process.wait(10) != 0, "the launcher ended with status 0"
    pattern = fault.says.get(scene.launcher, fault.says.get("", ""))
    pattern = pattern.format(rank=scene.rank, host=f"host{scene.rank + 1}")
    end = time.monotonic() + 5
    while not re.search(pattern, scene.job.said()):
        assert time.monotonic() < end, f"no {pattern!r} in {scene.job.said()[-4000:]}"
        time.sleep(0.1)
    return seconds


def _verify_checkpoint(job: HostJob) -> str:
    """Read the newest checkpoint, or both parts of it; returns its name."""
    for view in job.views:
        newest = max((view / "checkpoints").glob("update-*"))
        command = [sys.executable, "-m", "training.checkpoint", "verify", str(newest)]
        said = subprocess.check_output(command, text=True)
        assert "intact" in said, said
    return newest.name


@contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[TwoHosts, Path]]:
    """Start the hosts, with a small disk that they share."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", str(disk)], check=True)
    try:
        with TwoHosts(folder / "hosts", relayed=True) as two:
            yield two, disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run a campaign; return 1 if something was found."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.hosts.faults")
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a pattern in the name of a fault")
    options = parser.parse_args(argv)
    rounds = choose(random.Random(options.seed))
    chosen = (one for one in rounds if re.search(options.only, one.fault))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, two_hosts(Path(name)) as (two, disk):
        lines = run(itertools.islice(chosen, options.faults), two, disk)
    right = sum(map(is_right, lines))
    print(f"{right} of {len(lines)} had the right end, {time.monotonic() - began:.0f} s")
    return 0 if right == len(lines) else 1


if __name__ == "__main__":
    sys.exit(main())
