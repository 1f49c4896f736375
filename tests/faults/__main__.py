"""Kills ranks at random moments; the resumed runs must end with the same bytes.

    python -m tests.faults --kills 20 --seed 1 [--ranks N] [--center-store]

Each round starts a run with ``run.sh --restarts``, kills one of its ranks with SIGKILL, and
compares all arrays and values of the last checkpoint with those of an uninterrupted run. Ranks take
turns, and every other kill of a rank comes while a checkpoint is written. With ``--center-store``
the class centers of the runs that are killed are in a store.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from partial_fc.store.header import Origin
from runtime.state import SHARDED
from tests.support.job import Job
from training.checkpoint import __main__ as command
from training.checkpoint.reader import Checkpoint

UPDATES = 60
OPTIONS = (
    "--debug", "--num-classes", 60, "--num-images", 60, "--embedding-size", 16, "--batch-size", 4,
    "--save-interval", 5, "--frequent", 1, "--verbose", 10_000, "--sample-ratio", 0.5,
    "--max-update", UPDATES,
)  # fmt: skip
_LAST = f"checkpoints/update-{UPDATES:08d}"
_LONGEST = 240.0
# The last updates are too near to the end for a kill.
_MARGIN = 20


class Kill(NamedTuple):
    """One kill: of a rank after some updates, or the next checkpoint after them, and a delay."""

    rank: int
    updates: int
    in_checkpoint: bool
    delay: float


class Setup(NamedTuple):
    """What is disturbed: the ranks of each run, and how many kills come one after the other."""

    ranks: int = 2
    stored: bool = False
    """True to have the class centers of the runs that are killed in a store."""
    kills: int = 1
    verified: bool = False
    """True to verify, too, which takes most of a run's time."""

    def start(self, models: Path, *options: object) -> Job:
        quick = () if self.verified else ("--rec", ".")
        return Job("run.sh", self.ranks, models, *OPTIONS, *quick, *options)


def train(models: Path, setup: Setup) -> Path:
    with setup.start(models) as job:
        assert job.wait(_LONGEST) == 0, job.said()
    return models


def run(rounds: int, seed: int, folder: Path, setup: Setup, uninterrupted: Path) -> list[str]:
    """Kill in ``rounds`` runs, and return a line for each; one that is no "equal" is a failure."""
    kills = _choose(random.Random(seed), setup)
    lines = []
    for number in range(1, rounds + 1):
        chosen = list(itertools.islice(kills, setup.kills))
        result = _round(folder / f"run-{number}", chosen, setup, uninterrupted)
        lines.append(f"run {number}: {result}")
        print(lines[-1], flush=True)
    return lines


def contents(path: Path, store: Optional[Path] = None) -> dict[str, Any]:
    """Everything that a checkpoint holds, alike with a store and without: checksums and values."""
    manifest = Checkpoint(path).manifest
    found: dict[str, Any] = {
        f"{rank} {entry.name}": entry.checksum
        for rank, file in manifest.files.items()
        for entry in file.entries
        if entry.kind != SHARDED
    }
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(None):
        further = ("--center-store", str(store)) if store else ()
        command.main(["merge", str(path), "--output", f"{folder}/all.npz", *further])
        with np.load(f"{folder}/all.npz") as arrays:
            found.update({name: zlib.crc32(arrays[name].tobytes()) for name in arrays})
    values = {part: dict(values) for part, values in manifest.values.items()}
    if origin := Origin.of(values["head"]):
        for name in origin.values():
            del values["head"][name]
    return {**found, "values": values}


def _choose(rng: random.Random, setup: Setup) -> Iterator[Kill]:
    """Yield kills without end; each of the cases once before one comes twice."""
    cases = list(itertools.product(range(setup.ranks), (False, True)))
    while True:
        for rank, in_checkpoint in rng.sample(cases, len(cases)):
            updates = rng.randint(1, (UPDATES - _MARGIN) // setup.kills)
            yield Kill(rank, updates, in_checkpoint, rng.uniform(0, 0.05))


def _round(models: Path, kills: Sequence[Kill], setup: Setup, uninterrupted: Path) -> str:
    done: list[str] = []
    store = models / "centers" if setup.stored else None
    further = ("--center-store", store) if store else ()
    with setup.start(models, "--restarts", len(kills), *further) as job:
        for kill in kills:
            done.append(_kill(job, kill))
            job.wait_until(lambda: job.said().count("starting it again") == len(done), _LONGEST)
        what, status = ", ".join(done), job.wait(_LONGEST)
        if status:
            return f"{what}: status {status}, {job.said()[-2000:]}"
    found, expected = contents(models / _LAST, store), contents(uninterrupted / _LAST)
    names = sorted(found.keys() | expected.keys())
    others = [name for name in names if found.get(name) != expected.get(name)]
    return f"{what}: {f'ANOTHER RESULT in {others}' if others else 'equal'}"


def _kill(job: Job, kill: Kill) -> str:
    """Kill a rank, and return when that was."""

    def updates() -> int:
        return job.log(0).count("  loss ")

    def is_writing() -> bool:
        return any(job.models.glob("checkpoints/.update-*.part"))

    before = updates()
    job.wait_until(lambda: updates() >= before + kill.updates, _LONGEST)
    victim = job.processes()[kill.rank]
    while kill.in_checkpoint and not is_writing():
        assert job.process.poll() is None, f"the job has ended: {job.said()}"
        time.sleep(0.0002)
    time.sleep(kill.delay)
    os.kill(victim, signal.SIGKILL)
    written = " while a checkpoint was written" if is_writing() else ""
    return f"rank {kill.rank} after {updates() - before} updates{written}"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run a campaign; return 1 if something was found."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.faults")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--center-store", action="store_true")
    options = parser.parse_args(argv)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(options.ranks, options.center_store, verified=not options.center_store)
        uninterrupted = train(Path(folder, "uninterrupted"), setup)
        lines = run(options.kills, options.seed, Path(folder), setup, uninterrupted)
    equal = sum(line.endswith(": equal") for line in lines)
    print(f"{equal} of {options.kills} went on and ended equal, {time.monotonic() - began:.0f} s")
    return 0 if equal == options.kills else 1


if __name__ == "__main__":
    sys.exit(main())
