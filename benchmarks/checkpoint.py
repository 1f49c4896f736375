"""What a checkpoint costs the training: the pause, and the updates slowed down by writing.

    python -m benchmarks.checkpoint [--classes 1000000] [--ranks 2] [--json FILE]

``train.py`` trains on batches from memory and saves one checkpoint. Its log has the duration of the
pause and of the writing, its metrics have the end of each update. The time that updates during
pause and writing took longer than those before is lost; its share of throughput is computed for the
default of ``--save-interval``. The pause is compared with copying as much memory, in one thread per
rank.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

import backbones
from benchmarks import measure
from benchmarks.training_runs import WARM_UP_UPDATES, TrainingCase, train
from runtime.command_line import Parser, positive_integer
from runtime.errors import run_program
from training.config.run import FaceRunOptions

_PAUSED = re.compile(r"checkpoint of ([\d.]+) MiB on this rank: training paused for ([\d.]+) s")
_WRITTEN = re.compile(r"checkpoint \S+ written in ([\d.]+) s")
_INTERVAL = FaceRunOptions.save_interval


class Cost(NamedTuple):
    """Of one checkpoint, in seconds.

    Attributes:
        mebibytes: that rank 0 copied and wrote.
        pause: in which rank 0 did not train.
        writing: until the checkpoint existed.
        update: the median of an update before.
        lost: what pause and writing added to the updates meanwhile.
    """

    mebibytes: float
    pause: float
    writing: float
    update: float
    lost: float

    @property
    def share(self) -> float:
        """The lost share of the time between two checkpoints."""
        return self.lost / (self.lost + _INTERVAL * self.update)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print the report and write the rows."""
    options = _parse(argv)
    sections, rows = [_introduction(options)], []
    for threads in options.threads:
        case = _case(options)
        title = f"{case}, {options.ranks} ranks, threads={threads} per rank"
        costs, copies = [], []
        for number in range(1, options.rounds + 1):
            print(f"round {number}: {title}", file=sys.stderr)
            costs += train(
                case,
                ranks=options.ranks,
                copies=1,
                threads=threads,
                updates=2 * options.updates,
                read=lambda metrics: read_cost(metrics, WARM_UP_UPDATES + options.updates),
            )
            copies.append(time_copy(costs[-1].mebibytes, options.ranks))
        numbers = _numbers(costs, copies)
        rows += [measure.Row(title, name, value, unit) for name, (value, unit) in numbers.items()]
        lines = [(name, f"{value:.4g}", unit) for name, (value, unit) in numbers.items()]
        sections += [f"## {title}", measure.markdown_table(["", "median", "unit"], lines)]
    print("\n\n".join(sections))
    if options.json:
        measure.write_json(options.json, rows)


def read_cost(metrics: Path, saved: int) -> Cost:
    """Read the cost of the checkpoint after update ``saved`` from a run's metrics and log.

    Raises:
        RuntimeError: the run ended before the checkpoint was written.
    """
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    ends = {record["update"]: record["time"] for record in records if "loss" in record}
    seconds = {update: ends[update] - ends[update - 1] for update in ends if update - 1 in ends}
    log = (metrics.parent / "logs" / "rank-0000.log").read_text()
    size, pause = map(float, _PAUSED.findall(log)[0])
    writing = float(_WRITTEN.findall(log)[0])
    written = ends[saved] + pause + writing
    if written > max(ends.values()):
        raise RuntimeError(
            f"the checkpoint took {writing:.0f} s, longer than the run; give more --updates"
        )
    update = statistics.median(seconds[number] for number in range(WARM_UP_UPDATES + 1, saved + 1))
    during = [number for number in seconds if number > saved and ends[number - 1] < written]
    lost = sum(seconds[number] - update for number in during)
    return Cost(size, pause, writing, update, lost)


def time_copy(mebibytes: float, ranks: int) -> float:
    """The seconds of copying as much memory, for all ranks at once."""
    sources = [np.ones(int(mebibytes * 2**18), np.float32) for _ in range(ranks)]
    with ThreadPoolExecutor(ranks) as pool:
        started = time.perf_counter()
        list(pool.map(np.copy, sources))
        return time.perf_counter() - started


def _numbers(costs: Sequence[Cost], copies: Sequence[float]) -> dict[str, tuple[float, str]]:
    median = Cost(*map(statistics.median, zip(*costs)))
    return {
        "copied on rank 0": (median.mebibytes, "MiB"),
        "pause": (median.pause, "s"),
        "copy of as much memory": (statistics.median(copies), "s"),
        "writing": (median.writing, "s"),
        "update": (median.update, "s"),
        "lost by pause and writing": (median.lost, "s"),
        f"lost with --save-interval {_INTERVAL}": (100 * median.share, "% of throughput"),
    }


def _case(options: argparse.Namespace) -> TrainingCase:
    saving = ("--save-interval", str(WARM_UP_UPDATES + options.updates), "--keep", "1")
    return TrainingCase(
        options.network, options.classes, options.ratio, options.batch, options=saving
    )


def _introduction(options: argparse.Namespace) -> str:
    return f"""# What a checkpoint costs

{measure.machine()}

Medians of {options.rounds} runs. Each saves after {options.updates} updates (and {WARM_UP_UPDATES}
that warm up), and trains for as many again while the checkpoint is written."""


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.checkpoint",
        description="Measure what a checkpoint costs the training.",
    )
    parser.add_argument("--network", default="tiny", help="the backbone (%(default)s)")
    parser.add_argument(
        "--classes", type=positive_integer, default=1_000_000, help="how many (%(default)s)"
    )
    parser.add_argument("--ratio", type=float, default=0.1, help="sampled share (%(default)s)")
    parser.add_argument(
        "--batch", type=positive_integer, default=64, help="images per rank (%(default)s)"
    )
    parser.add_argument("--ranks", type=positive_integer, default=2, help="how many (%(default)s)")
    parser.add_argument(
        "--updates", type=positive_integer, default=30, help="before and after (%(default)s)"
    )
    measure.add_options(parser)
    parser.set_defaults(threads="1", rounds=3)
    options = parser.parse_args(argv)
    backbones.check(options.network)
    return options


if __name__ == "__main__":
    run_program(main)
