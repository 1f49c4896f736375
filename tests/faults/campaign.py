"""Kills ranks at random moments; the resumed runs must end with the same bytes.

    python -m tests.faults --kills 20 --seed 1

Each round starts a run with ``run.sh --restarts``, kills one of its ranks with SIGKILL, and
compares the last checkpoint with that of an uninterrupted run: every array of every rank by its
checksum, and every value. Ranks take turns, and every other kill of a rank comes while a checkpoint
is written.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from tests.support.job import Job
from training.checkpoint.reader import Checkpoint

RANKS, UPDATES, INTERVAL = 2, 60, 5
OPTIONS = (
    "--debug", "--num-classes", 60, "--num-images", 60, "--embedding-size", 16, "--batch-size", 4,
    "--save-interval", INTERVAL, "--frequent", 1, "--verbose", 10_000, "--sample-ratio", 0.5,
)  # fmt: skip
_LAST = f"checkpoints/update-{UPDATES:08d}"
_LONGEST = 240.0
# The last updates are too near to the end for a kill.
_MARGIN = 20


class Kill(NamedTuple):
    """One kill.

    Attributes:
        rank: that is killed.
        updates: after so many of this attempt.
        in_checkpoint: whether to wait for the next checkpoint to be written.
        delay: seconds to wait after that.
    """

    rank: int
    updates: int
    in_checkpoint: bool
    delay: float


def run(rounds: int, seed: int, folder: Path, kills_each: int = 1) -> list[str]:
    """Kill in ``rounds`` runs, and return a line for each; one that is no "equal" is a failure.

    Args:
        rounds: how many runs.
        seed: of the moments and the order of the ranks.
        folder: for the runs.
        kills_each: kills of each run, one after the other.
    """
    # The first process after an installation compiles kernels that may round otherwise.
    for name, updates in (("warm-up", 1), ("uninterrupted", UPDATES)):
        with Job("run.sh", RANKS, folder / name, *OPTIONS, "--max-update", updates) as job:
            assert job.wait(_LONGEST) == 0, job.said()
    expected = Checkpoint(folder / "uninterrupted" / _LAST)
    kills = _choose(random.Random(seed), (UPDATES - _MARGIN) // kills_each)
    lines = []
    for number in range(1, rounds + 1):
        chosen = list(itertools.islice(kills, kills_each))
        lines.append(f"run {number}: {_round(folder / f'run-{number}', chosen, expected)}")
        print(lines[-1], flush=True)
    return lines


def _choose(rng: random.Random, most_updates: int) -> Iterator[Kill]:
    """Yield kills without end; each of the cases once before one comes twice."""
    cases = list(itertools.product(range(RANKS), (False, True)))
    while True:
        for rank, in_checkpoint in rng.sample(cases, len(cases)):
            updates, delay = rng.randint(1, most_updates), rng.uniform(0, 0.05)
            yield Kill(rank, updates, in_checkpoint, delay)


def _round(models: Path, kills: Sequence[Kill], expected: Checkpoint) -> str:
    done = []
    options = (*OPTIONS, "--max-update", UPDATES, "--restarts", len(kills))
    with Job("run.sh", RANKS, models, *options) as job:
        for kill in kills:
            done.append(_kill(job, kill))
            job.wait_until(lambda: job.said().count("starting it again") == len(done), _LONGEST)
        what, status = ", ".join(done), job.wait(_LONGEST)
        if status:
            return f"{what}: status {status}, {job.said()[-2000:]}"
    found = Checkpoint(models / _LAST)
    same = found.manifest.files == expected.manifest.files
    same &= found.manifest.values == expected.manifest.values
    return f"{what}: {'equal' if same else 'ANOTHER RESULT'}"


def _kill(job: Job, kill: Kill) -> str:
    """Kill a rank, and return when that was."""
    before = job.log(0).count("  loss ")
    job.wait_until(lambda: job.log(0).count("  loss ") >= before + kill.updates, _LONGEST)
    victim = job.processes()[kill.rank]
    while kill.in_checkpoint and not _is_writing(job):
        assert job.process.poll() is None, f"the job has ended: {job.said()}"
        time.sleep(0.0002)
    time.sleep(kill.delay)
    os.kill(victim, signal.SIGKILL)
    written = " while a checkpoint was written" if _is_writing(job) else ""
    return f"rank {kill.rank} after {job.log(0).count('  loss ') - before} updates{written}"


def _is_writing(job: Job) -> bool:
    return any(job.models.glob("checkpoints/.update-*.part"))


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run a campaign; return 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        lines = run(options.kills, options.seed, Path(folder))
    equal = sum(line.endswith(": equal") for line in lines)
    print(f"{equal} of {options.kills} went on and ended equal, {time.monotonic() - began:.0f} s")
    return 0 if equal == options.kills else 1
