"""Faults between two hosts: each job ends in time or goes on, and has the result of another.

A job that ends has to say in the time of docs/reliability.md which host or rank is why, and leaves
no process. After that, ``run.sh --restarts`` or a second start goes on to the same last checkpoint.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Optional

import pytest

from tests.hosts.two_hosts import LAUNCHERS, MARKS, NAMES, PROGRAMS, ROOT, HostJob, TwoHosts

pytestmark = MARKS
# The checkout's launchers, whatever .venv/bin has links to.
PATH = (ROOT / "setup-utils/launchers", PROGRAMS)
UPDATES, HOST_TIMEOUT = 30, 40
OPTIONS = (
    "--debug --num-classes 60 --num-images 60 --embedding-size 16 --batch-size 4 --save-interval 5 "
    f"--frequent 1 --verbose 10000 --sample-ratio 0.5 --max-update {UPDATES} --stall-timeout 60"
).split()
AFTER_DEATH, AFTER_CUT = 30.0, HOST_TIMEOUT + 60.0
CUT = "cut the link"


class Process(NamedTuple):
    """A process of a host: its number in a list of hosts, and what it runs."""

    host: int
    pid: int
    words: tuple[str, ...]

    def runs(self, program: str) -> bool:
        """True if it is a program, or Python that runs it."""
        return any(word.endswith(program) for word in self.words[:2])

    @property
    def is_session(self) -> bool:
        return re.match("sshd: .*@notty", self.words[0]) is not None


class FaultyJob(HostJob):
    def __init__(self, two: TwoHosts, launcher: str, models: Path, *options: object) -> None:
        self.models = models
        choices = {"NETWORK": "tiny", "MODELS_ROOT": str(models), "HOSTS": NAMES}
        choices.update(HOST_TIMEOUT=str(HOST_TIMEOUT), OMP_NUM_THREADS="1", VIRTUAL_ENV=sys.prefix)
        super().__init__(
            two, two.folder / f"{models.name}.output", *LAUNCHERS[launcher], *OPTIONS, *options,
            folder=ROOT, path=PATH, variables=choices, start_new_session=True,
        )  # fmt: skip

    def processes(self) -> list[Process]:
        return [
            Process(number, process.pid, tuple(words))
            for number, host in enumerate(self.two.all)
            for process, words in host.running()
        ]

    def results(self) -> dict[str, bytes]:
        """The last weights, not the best, and the arrays of all ranks in the last checkpoint."""
        last = self.models.glob(f"checkpoints/update-{UPDATES:08d}/rank-*.bin")
        found = [*self.models.glob("model-0*.params"), *last]
        return {path.name: path.read_bytes() for path in found}

    def wait_for_words(self, pattern: str, seconds: float = 5) -> None:
        self.wait_until(lambda: re.search(pattern, self.said()), seconds, may_end=True)

    def wait_for_the_end_of(self, processes: Sequence[Process], seconds: float) -> None:
        self.wait_until(lambda: not {*processes} & {*self.processes()}, seconds, may_end=True)

    def end(self) -> int:
        status = self.process.wait(250)
        assert status in (0, 2), self.said()[-3000:]
        return status

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


Moment = Callable[[FaultyJob, int], None]


class Fault(NamedTuple):
    """What happens to a job, of which a rank may be the victim.

    ``seconds`` are those in which it ends, None if it goes on.
    """

    begin: Moment
    seconds: Optional[float] = None
    says: str = ""
    end: Moment = lambda job, rank: None
    launchers: Sequence[str] = tuple(LAUNCHERS)


def kill(matches: Callable[[int, Process], object]) -> Moment:
    def begin(job: FaultyJob, rank: int) -> None:
        victim = next(one for one in job.processes() if matches(rank, one))
        os.kill(victim.pid, signal.SIGKILL)

    return begin


def cut_for_a_while(job: FaultyJob, rank: int) -> None:
    job.two.cut(True)
    time.sleep(20)
    job.two.cut(False)


def fill_disk(job: FaultyJob, rank: int) -> None:
    with suppress(OSError), (job.models.parent / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))


FAULTS = {
    "kill a rank": Fault(
        kill(lambda rank, one: one.runs("train.py") and one.host == rank),
        AFTER_DEATH, r"rank {rank} with PID \d+ on node {host} exited on signal 9"
        r"|rank {rank} on {host} has ended with status 137",
    ),
    "kill the launcher": Fault(
        kill(lambda _, one: one.words[0] == "mpirun" or one.runs("/horovodrun.py")), AFTER_DEATH
    ),
    "kill Open MPI's daemon": Fault(
        kill(lambda _, one: one.host == 1 and one.runs("/orted")),
        AFTER_DEATH, "on node +host2|error: on host2 a signal has ended",
        launchers=tuple(LAUNCHERS)[:3],
    ),
    "kill the ssh session": Fault(
        kill(lambda _, one: one.host == 1 and one.is_session),
        AFTER_DEATH, "error: the connection to host2 is lost",
    ),
    CUT: Fault(
        lambda job, rank: job.two.cut(True), AFTER_CUT, "error: the connection to host2 is lost",
        lambda job, rank: job.two.cut(False),
    ),
    "cut the link for 20 s": Fault(cut_for_a_while),
    "fill the disk": Fault(
        fill_disk, AFTER_DEATH, "No space left on device",
        lambda job, rank: (job.models.parent / "filler").unlink(),
    ),
}  # fmt: skip
# Each fault once, by launchers in turn, and by all of them for ``make hostfaults``.
ROUNDS = [
    pytest.param(
        name, launcher, number % 2, id=f"{name}, {launcher}",
        marks=() if place == number % len(fault.launchers) else pytest.mark.cluster,
    )
    for number, (name, fault) in enumerate(FAULTS.items())
    for place, launcher in enumerate(fault.launchers)
]  # fmt: skip


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    disk = tmp_path_factory.mktemp("disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture(scope="module")
def two(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    """Two hosts that share the disk."""
    with TwoHosts(tmp_path_factory.mktemp("hosts") / "hosts") as started:
        yield started


@pytest.fixture(scope="module")
def expected(two: TwoHosts, disk: Path) -> dict[str, bytes]:
    # The first process after an installation compiles kernels that may round otherwise.
    for name, updates in (("warm-up", 1), ("undisturbed", UPDATES)):
        with FaultyJob(two, "run.sh", disk / name, "--max-update", updates) as job:
            assert job.end() == 0, job.said()
    assert len(job.results()) == 3
    return job.results()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "launcher", "rank"), ROUNDS)
def test_jobs_end_or_go_on_with_one_result(two, disk, tmp_path, expected, name, launcher, rank):
    fault, models, rng = FAULTS[name], disk / tmp_path.name, random.Random(name)
    restarts = ("--restarts", 1) if launcher == "run.sh" else ()
    with FaultyJob(two, launcher, models, *restarts) as job:
        # There is a checkpoint, and the end is not too near.
        job.wait_for_words(f"update {rng.randint(8, 18)}/", 250)
        time.sleep(rng.uniform(0, 0.5))
        before, began = job.processes(), time.monotonic()
        fault.begin(job, rank)
        if fault.seconds is not None:
            # run.sh may outlive its attempt. The ssh server learns of the end when the link is
            # back, or when TCP gives up.
            waited = [one for one in before if one.words[:2] != ("bash", "run.sh")
                      and not (name == CUT and one.is_session)]  # fmt: skip
            job.wait_for_the_end_of(waited, fault.seconds + began - time.monotonic())
            assert restarts or job.process.wait(10) != 0
            job.wait_for_words(fault.says.format(rank=rank, host=f"host{rank + 1}"))
            if restarts and name == "kill the launcher":
                job.wait_for_words("run ended with status 137")
            if restarts and name == CUT:
                # The other host is left out as long as the link is cut.
                job.wait_for_words("run.sh: host2 cannot be reached by ssh", 120)
            fault.end(job, rank)
        # A full disk is an error of the user's, after which run.sh does not start the ranks again.
        status = job.end() if restarts or fault.seconds is None else 2
    if restarts and name == CUT and status == 0:
        assert job.results().keys() == expected.keys() - {"rank-0001.bin"}
        return
    assert status == 0 or fault.seconds is not None
    if status:
        with FaultyJob(two, launcher, models) as job:
            assert job.end() == 0, job.said()[-3000:]
            rest = [process for process in job.processes() if not process.is_session]
            job.wait_for_the_end_of(rest, AFTER_DEATH)
    assert ".broken" not in job.said(), job.said()[-3000:]
    assert job.results() == expected
