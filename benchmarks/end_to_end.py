"""How fast whole training runs are, and what a second rank adds.

    python -m benchmarks.end_to_end [--network r18] [--ranks 1,2] [--rec DIR] [--json FILE]

Runs of ``train.py`` are measured in turns: one rank alone, N ranks that train together, and N
independent runs of one rank each. The last share processors, memory and clock of the machine as
ranks do, but no batch, no softmax and no gradients: no communication can avoid what they lose
against one rank alone. The batch per rank stays the same (weak scaling), so that ideal scaling is
N times the images/s of one rank.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import backbones
from benchmarks import measure
from benchmarks.training_runs import (
    PARTS,
    WARM_UP_UPDATES,
    TrainingCase,
    TrainingSpeed,
    read_speed,
    train,
)
from runtime.command_line import Parser, positive_integer
from runtime.errors import run_program


class RunSetup(NamedTuple):
    """Runs that take place at once: ``copies`` of them, each of ``ranks`` ranks."""

    ranks: int
    copies: int = 1

    def __str__(self) -> str:
        if self.copies > 1:
            return f"{self.copies} runs of one rank"
        return "one rank" if self.ranks == 1 else f"{self.ranks} ranks"


class RunMeasurement(NamedTuple):
    """The speeds of a setup's runs, round by round."""

    rounds: list[list[TrainingSpeed]]

    @property
    def per_round(self) -> list[float]:
        """Images/s of all runs together, by round."""
        return [sum(run.images_per_second for run in runs) for runs in self.rounds]

    @property
    def images_per_second(self) -> float:
        """The median over the rounds, all runs together."""
        return statistics.median(self.per_round)

    def share(self, part: str) -> float:
        """The median share of a part over rounds and runs."""
        return statistics.median(run.shares[part] for runs in self.rounds for run in runs)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print the report and write the rows."""
    options = _parse(argv)
    # Otherwise the runs would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    case = TrainingCase(options.network, options.classes, options.ratio, options.batch, options.rec)
    sections: list[str] = []
    rows: list[measure.Row] = []
    for threads in options.threads:
        title = f"{case}, threads={threads} per rank"
        measured = compare(case, threads, options)
        sections += [f"## {title}", table(measured)]
        rows += _rows(title, measured)
    print("\n\n".join([_introduction(options), *sections]))
    if options.json:
        measure.write_json(options.json, rows)


def compare(
    case: TrainingCase, threads: int, options: argparse.Namespace
) -> dict[RunSetup, RunMeasurement]:
    """Let the setups train in turns, ``options.rounds`` times."""
    measured = {setup: RunMeasurement([]) for setup in setups(options.ranks)}
    for number in range(1, options.rounds + 1):
        for setup, measurement in measured.items():
            print(f"round {number}: {setup}, {case}, threads={threads}", file=sys.stderr)
            measurement.rounds.append(
                train(
                    case,
                    ranks=setup.ranks,
                    copies=setup.copies,
                    threads=threads,
                    updates=options.updates,
                    read=read_speed,
                )
            )
    return measured


def setups(ranks: Sequence[int]) -> list[RunSetup]:
    """One rank, and for each larger number: ranks together, and independent runs."""
    several = sorted({number for number in ranks if number > 1})
    pairs = [(RunSetup(number), RunSetup(1, number)) for number in several]
    return [RunSetup(1), *(setup for pair in pairs for setup in pair)]


def efficiency(setup: RunSetup, measured: Mapping[RunSetup, RunMeasurement]) -> float:
    """Images/s over those of as many ranks as fast as one rank alone."""
    alone = measured[RunSetup(1)].per_round
    return measure.ratio(measured[setup].per_round, alone) / (setup.ranks * setup.copies)


def table(measured: Mapping[RunSetup, RunMeasurement]) -> str:
    """Lay out the measurements."""
    header = ["", "images/s", "from … to", "efficiency", "÷ runs apart", *PARTS]
    lines = []
    for setup, own in measured.items():
        apart = measured.get(RunSetup(1, setup.ranks)) if setup.ranks > 1 else None
        lines.append(
            [
                str(setup),
                f"{own.images_per_second:.2f}",
                f"{min(own.per_round):.2f} … {max(own.per_round):.2f}",
                f"{efficiency(setup, measured):.3f}",
                f"{measure.ratio(own.per_round, apart.per_round):.3f}" if apart else "",
                *(f"{own.share(part):.1%}" for part in PARTS),
            ]
        )
    return measure.markdown_table(header, lines)


def _rows(title: str, measured: Mapping[RunSetup, RunMeasurement]) -> list[measure.Row]:
    rows = []
    for setup, own in measured.items():
        rows.append(measure.Row(title, str(setup), own.images_per_second, "images/s"))
        rows.append(measure.Row(title, str(setup), efficiency(setup, measured), "of ideal scaling"))
        rows += [measure.Row(title, str(setup), own.share(part), f"share {part}") for part in PARTS]
    return rows


def _introduction(options: argparse.Namespace) -> str:
    return f"""# Whole training runs, on one rank and on several

{measure.machine()}

Medians of {options.rounds} rounds, in each of which every row trains for {options.updates} updates
after {WARM_UP_UPDATES} that warm up. The efficiency is the images/s over those of as many ranks
that are each as fast as one alone in the same round; "÷ runs apart" compares with as many
unconnected runs at the same time. The shares are those of the log of rank 0."""


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.end_to_end",
        description="Measure whole training runs, on one rank and on several.",
    )
    parser.add_argument("--network", default="r18", help="the backbone (%(default)s)")
    parser.add_argument(
        "--classes", type=positive_integer, default=100_000, help="how many there are (%(default)s)"
    )
    parser.add_argument("--ratio", type=_ratio, default=0.1, help="sampled share (%(default)s)")
    parser.add_argument(
        "--batch", type=positive_integer, default=32, help="images per rank (%(default)s)"
    )
    parser.add_argument("--ranks", type=_counts, default="1,2", help="how many (%(default)s)")
    parser.add_argument(
        "--updates", type=positive_integer, default=8, help="measured ones of a turn (%(default)s)"
    )
    parser.add_argument(
        "--rec", type=Path, help="folder of a record set (without: batches from memory)"
    )
    measure.add_options(parser)
    parser.set_defaults(threads="1", rounds=3)
    options = parser.parse_args(argv)
    backbones.check(options.network)
    return options


def _counts(text: str) -> tuple[int, ...]:
    return tuple(positive_integer(word.strip()) for word in text.split(","))


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 0.0 < ratio <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 1")
    return ratio


if __name__ == "__main__":
    run_program(main)
