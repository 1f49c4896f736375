"""Ten million identities on one machine: speed and memory with the class centers in a store.

    python -m benchmarks.identities --folder DIR [--classes 10000000] [--ranks 1,2]
        [--ratios 0.001,0.01] [--updates 200]

Trains MobileFaceNet on batches from memory, as ``--dataset 1000w`` does with ten million classes,
once for each number of ranks and each sample ratio. The store lies in a folder of its own in DIR
and is removed after each run: at a ratio of 0.01 it takes some 35 GB after 200 updates.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Optional

from benchmarks import measure
from benchmarks.training_runs import WARM_UP_UPDATES, read_updates, train
from runtime import processors
from runtime.command_line import Parser, positive_integer
from runtime.errors import run_program

_NETWORK = "mbf"
_GLOBAL_BATCH = 64
_MEMORY_GIB = 2
_PEAK = re.compile(r"peak memory of this rank: ([\d,.]+) MiB")
_PARTS = {"waiting_for_rows": "waiting for rows", "backbone": "backbone", "head": "head"}
_SAID = """`{}`, {} images in a global batch, `--center-memory {}`, one run each of {} measured
updates. Images/s and rank 0's shares of the time are of all of them, the memory is the peak of each
rank."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Train and print the report."""
    options = _parse(argv)
    lines = []
    for ratio in options.ratios:
        for ranks in options.ranks:
            title = f"{options.classes} classes, ratio {ratio:g}, ranks {ranks}"
            print(f"training {title}", file=sys.stderr)
            lines.append([str(ranks), f"{ratio:g}", *run(options, ranks, ratio)])
            # Printed at once, so that an interrupted run leaves what it has measured.
            print(*lines[-1], file=sys.stderr)
    header = ("ranks", "sample ratio", "images/s", "memory of the ranks (MiB)", *_PARTS.values())
    measure.print_report(
        f"{options.classes:,} identities with class centers in a store",
        _SAID.format(_NETWORK, _GLOBAL_BATCH, _MEMORY_GIB, options.updates),
        [measure.markdown_table(header, lines)],
    )


def run(options: argparse.Namespace, ranks: int, ratio: float) -> list[str]:
    """Train with a new store, and remove it; returns the last cells of a row."""
    with TemporaryDirectory(dir=options.folder) as store:
        words = ["--center-store", store, "--center-memory", str(_MEMORY_GIB)]
        words += ["--num-classes", str(options.classes)]
        words += ["--max-update", str(WARM_UP_UPDATES + options.updates)]
        choices = {"NETWORK": _NETWORK, "SAMPLE_RATIO": ratio, "BATCH_SIZE": _GLOBAL_BATCH // ranks}
        threads = max(1, processors.available() // ranks)
        (found,) = train(choices, words, ranks=ranks, threads=threads, read=read)
        print("removing the store", file=sys.stderr)
    return found


def read(metrics: Path) -> list[str]:
    """Read the speed of a run, the memory of its ranks, and rank 0's shares of the time.

    All images over all of the time: a median of updates would be another number if the disk held up
    some of them.
    """
    updates = read_updates(metrics)
    seconds = [1 / update["images_per_second"] for update in updates]  # for an image
    shares = (
        sum(update[part] * time for update, time in zip(updates, seconds)) / sum(seconds)
        for part in _PARTS
    )
    # Each rank writes its peak at the end of its log.
    logs = sorted(metrics.parent.glob("logs/rank-*.log"))
    peaks = [peak for log in logs for peak in _PEAK.findall(log.read_text(encoding="utf-8"))]
    return [
        f"{len(seconds) / sum(seconds):.1f}",
        " and ".join(f"{float(peak.replace(',', '')):,.1f}" for peak in peaks),
        *(f"{share:.1%}" for share in shares),
    ]


def _shares(text: str) -> tuple[float, ...]:
    return tuple(map(measure.share, text.split(",")))


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.identities",
        description="Train with millions of class centers in a store.",
    )
    add = parser.add_argument
    add("--folder", type=Path, required=True, metavar="DIR", help="for the stores; on a fast disk")
    add("--classes", type=positive_integer, default=10_000_000, help="(%(default)s)")
    add("--ranks", type=measure.counts, default="1,2", help="(%(default)s)")
    add("--ratios", type=_shares, default="0.001,0.01", help="(%(default)s)")
    add("--updates", type=positive_integer, default=200, help="that are measured (%(default)s)")
    options = parser.parse_args(argv)
    if not options.folder.is_dir():
        parser.error(f"--folder {options.folder} is no folder; make it first")
    if any(_GLOBAL_BATCH % count for count in options.ranks):
        parser.error(f"--ranks: each has to divide the {_GLOBAL_BATCH} images of a global batch")
    return options


if __name__ == "__main__":
    run_program(main)
