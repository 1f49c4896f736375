"""A long run of a small network: constant memory, constant names of tensors, no stalls.

    python -m tests.endurance --updates 3000 --ranks 3

The first run measures the memory of its ranks. A second, short one writes Horovod's timeline, whose
buffer grows by itself: it has a rank's request for a tensor only if the tensor is not in the
response cache, as one whose name changes with the update.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tests.support.job import Job

_WARM, _SHORT = 200, 400
_MOST_GROWTH = 0.02
# The number of the rank whose request arrived.
_REQUEST = re.compile(rb'"ph": "X", "name": "\d+"')


def _run(ranks: int, folder: Path, updates: int, measure: Callable[[Job], None]) -> Iterator[str]:
    """Run a job, measure after its first updates and before its last, yield what is wrong."""
    options = (
        "--debug", "--num-classes", 60, "--num-images", 60, "--embedding-size", 16,
        "--batch-size", 2, "--max-update", updates, "--save-interval", 0, "--keep", 0,
        "--frequent", 20, "--verbose", 10 * updates, "--sample-ratio", 0.5,
    )  # fmt: skip
    with Job("--gloo", ranks, folder, *options) as job:
        for update in (_WARM, updates - 40):
            job.wait_until(lambda: f"update {update}/" in job.log(0), 4 * 3600)  # noqa: B023
            measure(job)
        status, said = job.wait(600), job.said()
    if status:
        yield f"status {status}: {said[-2000:]}"
    if "stall" in said.lower():
        yield "Horovod warned of a stall"


def watch_memory(updates: int, ranks: int, folder: Path) -> Iterator[str]:
    """Run more than 300 updates, a multiple of 20, and yield a line for each problem."""
    sizes: dict[int, list[int]] = {rank: [] for rank in range(ranks)}

    def measure(job: Job) -> None:
        for rank, pid in job.processes().items():
            sizes[rank].append(psutil.Process(pid).memory_info().rss)

    yield from _run(ranks, folder, updates, measure)
    for rank, (before, after) in sizes.items():
        growth = after / before - 1
        print(f"rank {rank}: {before / 2**20:.1f} MiB, {growth:+.2%}")
        if growth >= _MOST_GROWTH:
            yield f"rank {rank} has grown by {growth:.1%}"


def watch_names(ranks: int, folder: Path) -> Iterator[str]:
    """Run shortly, and yield a line for each problem."""
    timeline = folder.with_suffix(".json")
    sizes: list[int] = []
    os.environ["HOROVOD_TIMELINE"] = str(timeline)
    yield from _run(ranks, folder, _SHORT, lambda _: sizes.append(timeline.stat().st_size))
    del os.environ["HOROVOD_TIMELINE"]
    content = timeline.read_bytes()
    early = len(_REQUEST.findall(content[: sizes[0]]))
    late = len(_REQUEST.findall(content)) - early
    print(f"requests outside the cache: {early} in the first {_WARM} updates, {late} in all others")
    # Those of the end come once. Without the cache there are dozens in each update.
    if not early or late > early:
        yield f"{late} tensors were not in the cache after the first {_WARM} updates"


def main() -> int:
    """Run what the command line says; return 1 if there is a problem."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.endurance")
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--ranks", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = list(watch_memory(options.updates, options.ranks, Path(folder) / "long"))
        found += watch_names(options.ranks, Path(folder) / "short")
    print("\n".join(found) or f"{options.updates} updates on {options.ranks} ranks: no problem")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
