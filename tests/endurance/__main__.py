"""A long run of a small network: memory stays, names stay, nobody stalls.

    python -m tests.endurance --updates 3000 --ranks 3

Counts, while the run goes on, the memory of each rank; afterwards the names that Horovod's
coordinator had to negotiate, by its timeline: a tensor that is in the response cache is not
negotiated any more, so a name that changes from update to update would show.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.support.job import Job

_WARM = 200
_MOST_GROWTH = 0.02
_NEGOTIATION = b'"NEGOTIATE_'


def _memory(job: Job) -> dict[int, int]:
    """Return the resident bytes of each rank."""
    page = os.sysconf("SC_PAGE_SIZE")
    return {
        rank: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
        for rank, pid in job.processes().items()
    }


def _reached(job: Job, update: int) -> Callable[[], bool]:
    return lambda: f"update {update}/" in job.log(0)


def run(updates: int, ranks: int, folder: Path) -> list[str]:
    """Run, and return what was found: a line for each thing that is wrong.

    Args:
        updates: the length of the run, a multiple of 100 and more than 300.
        ranks: how many.
        folder: for the run.
    """
    timeline = folder / "timeline.json"
    os.environ["HOROVOD_TIMELINE"] = str(timeline)
    options = (
        "--debug", "--num-classes", 60, "--num-images", 60, "--embedding-size", 16,
        "--batch-size", 2, "--max-update", updates, "--save-interval", 0, "--keep", 0,
        "--frequent", 20, "--verbose", 10 * updates, "--sample-ratio", 0.5,
    )  # fmt: skip
    with Job("--gloo", ranks, folder / "run", *options) as job:
        job.wait_until(_reached(job, _WARM), 3600)
        before, warm_bytes = _memory(job), timeline.stat().st_size
        job.wait_until(_reached(job, updates - 40), 4 * 3600)
        after = _memory(job)
        status, said = job.wait(600), job.said()
    found = [] if status == 0 else [f"status {status}: {said[-2000:]}"]
    for rank, size in before.items():
        growth = after[rank] / size - 1
        print(f"rank {rank}: {size / 2**20:.1f} MiB, then {after[rank] / 2**20:.1f}: {growth:+.2%}")
        if growth >= _MOST_GROWTH:
            found.append(f"rank {rank} has grown by {growth:.1%}")
    content = timeline.read_bytes()
    early = content[:warm_bytes].count(_NEGOTIATION)
    late = content.count(_NEGOTIATION) - early
    print(f"negotiations: {early} in the first {_WARM} updates, {late} in all others")
    # Those of the end come once. Without the cache there are dozens in each update.
    if not early or late >= updates - _WARM:
        found.append(f"{late} tensors were negotiated after the first {_WARM} updates")
    if "stall" in said.lower():
        found.append("Horovod warned of a stall")
    return found


def main() -> int:
    """Run what the command line says; return 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.endurance")
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--ranks", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(options.updates, options.ranks, Path(folder))
    print("\n".join(found) or f"{options.updates} updates on {options.ranks} ranks: all is well")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
