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
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.support.job import Job

_WARM, _SHORT = 200, 400
_MOST_GROWTH = 0.02
# The number of the rank whose request arrived.
_REQUEST = re.compile(rb'"ph": "X", "name": "\d+"')


def _run(ranks: int, folder: Path, updates: int, measure: Callable[[Job], None]) -> None:
    """Run a job, and measure after its first updates and before its last."""
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
    assert not status, f"status {status}: {said[-2000:]}"
    assert "stall" not in said.lower(), "Horovod warned of a stall"


def watch_memory(updates: int, ranks: int, folder: Path) -> None:
    """Run more than 300 updates, a multiple of 20."""
    sizes: dict[int, list[int]] = {rank: [] for rank in range(ranks)}

    def measure(job: Job) -> None:
        for rank, pid in job.processes().items():
            sizes[rank].append(psutil.Process(pid).memory_info().rss)

    _run(ranks, folder, updates, measure)
    for rank, (before, after) in sizes.items():
        print(f"rank {rank}: {before / 2**20:.1f} MiB, {after / before - 1:+.2%}")
    assert max(after / before for before, after in sizes.values()) < 1 + _MOST_GROWTH


def watch_names(ranks: int, folder: Path) -> None:
    """Run shortly, and count the requests that Horovod's response cache does not answer."""
    timeline = folder.with_suffix(".json")
    sizes: list[int] = []
    os.environ["HOROVOD_TIMELINE"] = str(timeline)
    _run(ranks, folder, _SHORT, lambda _: sizes.append(timeline.stat().st_size))
    del os.environ["HOROVOD_TIMELINE"]
    content = timeline.read_bytes()
    early = len(_REQUEST.findall(content[: sizes[0]]))
    late = len(_REQUEST.findall(content)) - early
    print(f"requests outside the cache: {early} in the first {_WARM} updates, {late} in all others")
    # Those of the end come once. Without the cache there are dozens in each update.
    assert 0 < early >= late


def main() -> None:
    """Run what the command line says; a problem is an error."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.endurance")
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--ranks", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        watch_memory(options.updates, options.ranks, Path(folder) / "long")
        watch_names(options.ranks, Path(folder) / "short")
    print(f"{options.updates} updates on {options.ranks} ranks: no problem")


if __name__ == "__main__":
    main()
