"""Ten million identities on one machine: speed and memory with the class centers in a store.

    python -m benchmarks.identities --folder DIR [--classes 10000000] [--ranks 1,2]
        [--ratios 0.001,0.01] [--updates 200] [--json FILE]

Trains MobileFaceNet on batches from memory, as ``--dataset 1000w`` does with ten million classes,
once for each number of ranks and each sample ratio. The store lies in a folder of its own in DIR
and is removed behind each run: at a ratio of 0.01 it takes some 35 GB after 200 updates. What a run
gave stays in DIR, so that it is not run again after an interruption.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import measure
from benchmarks.training_runs import WARM_UP_UPDATES, TrainingCase, peaks, train
from runtime import processors
from runtime.command_line import Parser, positive_integer
from runtime.errors import run_program
from runtime.files import write_atomically

_NETWORK = "mbf"
_GLOBAL_BATCH = 64
_MEMORY_GIB = 2
_PARTS = {"waiting_for_rows": "waiting for rows", "backbone": "backbone", "head": "head"}


class StoredRun(NamedTuple):
    """Of one run with a store, over all updates that were measured.

    Attributes:
        ranks: of the run.
        ratio: of the centers that take part in an update.
        images_per_second: all images over all of the time, which a median of updates would not be
            if the disk held up some of them.
        shares: of rank 0's time: waiting for rows, backbone, head.
        peaks: MiB, of each rank.
        commit: that trained.
    """

    ranks: int
    ratio: float
    images_per_second: float
    shares: dict[str, float]
    peaks: Sequence[float]
    commit: str


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Train, print the report and write the rows."""
    options = _parse(argv)
    # Otherwise the runs would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    runs: list[StoredRun] = []
    for ratio in options.ratios:
        for ranks in options.ranks:
            title = f"{options.classes} classes, ratio {ratio:g}, ranks {ranks}"
            print(f"training {title}", file=sys.stderr)
            kept = options.folder / f"{title}, {options.updates} updates.json"
            if not kept.is_file():
                found = run(options, ranks, ratio)
                write_atomically(kept, f"{json.dumps(found._asdict())}\n".encode())
            runs.append(StoredRun(**json.loads(kept.read_text(encoding="utf-8"))))
    print(report(options, runs))
    if options.json:
        measure.write_json(options.json, rows(runs))


def run(options: argparse.Namespace, ranks: int, ratio: float) -> StoredRun:
    """Train with a new store, and remove it."""
    with TemporaryDirectory(dir=options.folder) as store:
        stored = ("--center-store", store, "--center-memory", str(_MEMORY_GIB))
        case = TrainingCase(_NETWORK, options.classes, ratio, _GLOBAL_BATCH // ranks, None, stored)
        (found,) = train(
            case,
            ranks=ranks,
            copies=1,
            threads=max(1, processors.available() // ranks),
            updates=options.updates,
            read=lambda metrics: read(metrics, ranks, ratio),
        )
        print("removing the store", file=sys.stderr)
    return found


def read(metrics: Path, ranks: int, ratio: float) -> StoredRun:
    """What a run wrote."""
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    measured = [record for record in records if record["update"] > WARM_UP_UPDATES]
    seconds = [1 / record["images_per_second"] for record in measured]  # for an image
    shares = {
        part: sum(record[part] * time for record, time in zip(measured, seconds)) / sum(seconds)
        for part in _PARTS
    }
    speed, memory = len(seconds) / sum(seconds), peaks(metrics.parent)
    return StoredRun(ranks, ratio, speed, shares, memory, measure.commit())


def report(options: argparse.Namespace, runs: Sequence[StoredRun]) -> str:
    """Describe the machine and the runs, as Markdown."""
    header = ("ranks", "sample ratio", "images/s", "memory of the ranks (MiB)", *_PARTS.values())
    lines = [
        (
            str(one.ranks),
            f"{one.ratio:g}",
            f"{one.images_per_second:.1f}",
            " and ".join(f"{peak:,.1f}" for peak in one.peaks),
            *(f"{share:.1%}" for share in one.shares.values()),
        )
        for one in runs
    ]
    commits = sorted({one.commit for one in runs})
    return f"""# {options.classes:,} identities with class centers in a store

{measure.machine()}

`{_NETWORK}`, {_GLOBAL_BATCH} images in a global batch, `--center-memory {_MEMORY_GIB}`, one run
each of {options.updates} measured updates. Images/s and rank 0's shares of the time are of all of
them, the memory is the peak of each rank. Trained at {", ".join(commits)}.

{measure.markdown_table(header, lines)}"""


def rows(runs: Sequence[StoredRun]) -> list[measure.Row]:
    """Rows for ``--json``."""
    return [
        measure.Row(f"ranks {one.ranks}, ratio {one.ratio:g}", name, value, unit)
        for one in runs
        for name, value, unit in (
            ("speed", one.images_per_second, "images/s"),
            ("waiting for rows", one.shares["waiting_for_rows"], ""),
            ("memory of all ranks", sum(one.peaks), "MiB"),
        )
    ]


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.identities",
        description="Train with millions of class centers in a store.",
    )
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="for the stores; on a fast disk"
    )
    parser.add_argument(
        "--classes", type=positive_integer, default=10_000_000, help="(%(default)s)"
    )
    parser.add_argument("--ranks", type=_counts, default="1,2", help="(%(default)s)")
    parser.add_argument("--ratios", type=_ratios, default="0.001,0.01", help="(%(default)s)")
    parser.add_argument(
        "--updates", type=positive_integer, default=200, help="that are measured (%(default)s)"
    )
    parser.add_argument("--json", type=measure.file_to_write, metavar="FILE", help="write the rows")
    options = parser.parse_args(argv)
    if not options.folder.is_dir():
        parser.error(f"--folder {options.folder} is no folder; make it first")
    return options


def _counts(text: str) -> list[int]:
    counts = [positive_integer(word.strip()) for word in text.split(",")]
    if any(_GLOBAL_BATCH % count for count in counts):
        raise argparse.ArgumentTypeError(
            f"{text}: each has to divide the {_GLOBAL_BATCH} images of a global batch"
        )
    return counts


def _ratios(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} are no numbers such as 0.001,0.01") from None


if __name__ == "__main__":
    run_program(main)
