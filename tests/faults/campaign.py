"""Kills ranks at random moments; the resumed runs must end with the same bytes.

    python -m tests.faults --kills 20 --seed 1 [--ranks N] [--center-store]

Each round starts a run with ``run.sh --restarts``, kills one of its ranks with SIGKILL, and
compares the last checkpoint with that of an uninterrupted run: every array of every rank by its
checksum, and every value. Ranks take turns, and every other kill of a rank comes while a checkpoint
is written. Of a run with another result, its line says which arrays are others. With
``--center-store`` the class centers of the runs that are killed are in a store,
and those of the uninterrupted run in memory.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from partial_fc.store.header import Origin
from partial_fc.store.saved_rows import SavedRows
from runtime.state import SHARDED
from tests.support.job import Job
from training.checkpoint.reader import Checkpoint

UPDATES, INTERVAL = 60, 5
OPTIONS = (
    "--debug", "--num-classes", 60, "--num-images", 60, "--embedding-size", 16, "--batch-size", 4,
    "--save-interval", INTERVAL, "--frequent", 1, "--verbose", 10_000, "--sample-ratio", 0.5,
)  # fmt: skip
_LAST = f"checkpoints/update-{UPDATES:08d}"
_LONGEST = 240.0
# The last updates are too near to the end for a kill.
_MARGIN = 20


class Kill(NamedTuple):
    """One kill: of a rank after some updates of this attempt and a delay in seconds."""

    rank: int
    updates: int
    in_checkpoint: bool
    """Whether to wait for the next checkpoint to be written, before the delay."""
    delay: float


class Setup(NamedTuple):
    """What is disturbed: the ranks of each run, and how many kills come one after the other."""

    ranks: int = 2
    stored: bool = False
    """Whether the class centers of the runs that are killed are in a store."""
    kills: int = 1
    verified: bool = False
    """Whether the runs verify, too, which takes most of their time."""

    @property
    def options(self) -> tuple[object, ...]:
        """Of all runs."""
        return (*OPTIONS, "--max-update", UPDATES, *(() if self.verified else ("--rec", ".")))


def train(models: Path, setup: Setup) -> Path:
    """Train without interruption."""
    with Job("run.sh", setup.ranks, models, *setup.options) as job:
        assert job.wait(_LONGEST) == 0, job.said()
    return models


def run(rounds: int, seed: int, folder: Path, setup: Setup, uninterrupted: Path) -> list[str]:
    """Kill in ``rounds`` runs, and return a line for each; one that is no "equal" is a failure."""
    kills = _choose(random.Random(seed), setup)
    lines = []
    for number in range(1, rounds + 1):
        chosen = list(itertools.islice(kills, setup.kills))
        models = folder / f"run-{number}"
        lines.append(f"run {number}: {_round(models, chosen, setup, uninterrupted)}")
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
    values = {part: dict(values) for part, values in manifest.values.items()}
    origin = Origin.of(values["head"])
    assert (origin is None) == (store is None)
    for name in origin.values() if origin else ():
        del values["head"][name]
    if store is None:
        for entry in manifest.files[0].entries:
            if entry.kind == SHARDED:
                pieces = Checkpoint(path).pieces(entry.name, 0, entry.total)
                found[entry.name] = _checksum(rows for _, rows in pieces)
    else:
        assert origin is not None
        with SavedRows(store, origin, manifest.update) as rows:
            for name in rows.shapes:
                found[f"head/{name}"] = _checksum(rows.rows(name))
    return {**found, "values": values}


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The names of what is not in both, or not the same; see ``contents``."""
    missing = object()
    names = found.keys() | expected.keys()
    return sorted(n for n in names if found.get(n, missing) != expected.get(n, missing))


def _checksum(parts: Iterable[Any]) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(np.ascontiguousarray(part).tobytes(), checksum)
    return checksum


def _choose(rng: random.Random, setup: Setup) -> Iterator[Kill]:
    """Yield kills without end; each of the cases once before one comes twice."""
    cases = list(itertools.product(range(setup.ranks), (False, True)))
    while True:
        for rank, in_checkpoint in rng.sample(cases, len(cases)):
            updates = rng.randint(1, (UPDATES - _MARGIN) // setup.kills)
            yield Kill(rank, updates, in_checkpoint, rng.uniform(0, 0.05))


def _round(models: Path, kills: Sequence[Kill], setup: Setup, uninterrupted: Path) -> str:
    done = []
    store = models / "centers" if setup.stored else None
    further = ("--center-store", store) if store else ()
    options = (*setup.options, "--restarts", len(kills), *further)
    with Job("run.sh", setup.ranks, models, *options) as job:
        for kill in kills:
            done.append(_kill(job, kill))
            job.wait_until(lambda: job.said().count("starting it again") == len(done), _LONGEST)
        what, status = ", ".join(done), job.wait(_LONGEST)
        if status:
            return f"{what}: status {status}, {job.said()[-2000:]}"
    others = differences(contents(models / _LAST, store), contents(uninterrupted / _LAST))
    return f"{what}: {f'ANOTHER RESULT in {others}' if others else 'equal'}"


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
