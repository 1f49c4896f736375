"""Ranks killed at random moments, runs that go on, and the same bytes at the end.

    python -m tests.faults --kills 20 --seed 1

Each round starts a run with ``run.sh --restarts``, kills one of its ranks with SIGKILL, and
compares the last checkpoint with that of an undisturbed run: every array of every rank by its
checksum, and every value. Half of the kills come while a checkpoint is being written.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.job import Job
from training.checkpoint_reader import Checkpoint

RANKS, UPDATES, INTERVAL = 2, 120, 5
OPTIONS = (
    "--debug", "--num-classes", 60, "--num-images", 60, "--embedding-size", 16, "--batch-size", 4,
    "--max-update", UPDATES, "--save-interval", INTERVAL, "--frequent", 1, "--verbose", 10_000,
    "--sample-ratio", 0.5,
)  # fmt: skip
_LAST = f"checkpoints/update-{UPDATES:08d}"
_LONGEST = 240.0


def run(kills: int, seed: int, folder: Path) -> list[str]:
    """Kill ``kills`` runs, and return a line for each; a line that is no "equal" is a failure.

    Args:
        kills: the number of rounds.
        seed: of the moments and the ranks.
        folder: for the runs.
    """
    with Job("run.sh", RANKS, folder / "undisturbed", *OPTIONS) as job:
        assert job.wait(_LONGEST) == 0, job.said()
    expected = Checkpoint(folder / "undisturbed" / _LAST)
    rng = random.Random(seed)
    lines = []
    for number in range(kills):
        lines.append(f"kill {number + 1}: {_round(folder / f'kill-{number + 1}', rng, expected)}")
        print(lines[-1], flush=True)
    return lines


def _round(models: Path, rng: random.Random, expected: Checkpoint) -> str:
    update, rank = rng.randrange(1, UPDATES - 2 * INTERVAL), rng.randrange(RANKS)
    delay, in_checkpoint = rng.uniform(0, 0.1), rng.random() < 0.5
    with Job("run.sh", RANKS, models, *OPTIONS, "--restarts", 1) as job:
        job.wait_until(lambda: f"update {update}/" in job.log(0), _LONGEST)
        if in_checkpoint:
            while not _is_writing(models) and job.process.poll() is None:
                time.sleep(0.0002)
        else:
            time.sleep(delay)
        os.kill(job.processes()[rank], signal.SIGKILL)
        moment = f"rank {rank} after update {job.log(0).count('  loss ')}"
        moment += " while a checkpoint was written" if in_checkpoint else ""
        status = job.wait(_LONGEST)
        if status or "starting it again" not in job.said():
            return f"{moment}: status {status}, {job.said()[-2000:]}"
    found = Checkpoint(models / _LAST)
    same = found.manifest.files == expected.manifest.files
    same &= found.manifest.values == expected.manifest.values
    return f"{moment}: {'equal' if same else 'ANOTHER RESULT'}"


def _is_writing(models: Path) -> bool:
    return any(models.glob("checkpoints/.update-*.part"))


def main(argv: Sequence[str] | None = None) -> int:
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
