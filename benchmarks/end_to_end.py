"""How fast whole training runs are, and what a second rank adds.

    python -m benchmarks.end_to_end [--network r18] [--ranks 1,2] [--rec DIR]

Runs of ``train.py`` are measured in turns: one rank alone, N ranks that train together, and N
independent runs of one rank each. The last share processors, memory and clock of the machine as
ranks do, but no batch, no softmax and no gradients: no communication can avoid what they lose
against one rank alone. The batch per rank stays the same (weak scaling), so that ideal scaling is
N times the images/s of one rank.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import backbones
from benchmarks import measure
from benchmarks.training_runs import WARM_UP_UPDATES, read_updates, train
from runtime.command_line import positive_integer
from runtime.errors import run_program

_PARTS = ("waiting", "backbone", "head", "communication")
_SAID = """Medians of {} rounds, in each of which every row trains for {} updates after {} that warm
up. The efficiency is the images/s over those of as many ranks that are each as fast as one alone in
the same round; "÷ runs apart" compares with as many unconnected runs at the same time. The shares
are those of the log of rank 0."""


class RunSetup(NamedTuple):
    """Runs that take place at once: ``copies`` of them, each of ``ranks`` ranks."""

    ranks: int
    copies: int = 1

    def __str__(self) -> str:
        """Its name in the report."""
        if self.copies > 1:
            return f"{self.copies} runs of one rank"
        return "one rank" if self.ranks == 1 else f"{self.ranks} ranks"


_ALONE = RunSetup(1)
Rounds = list[list[dict[str, float]]]
"""The medians of each run of a setup, by round."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure and print the report."""
    options = _parse(argv)
    network, ratio, batch = options.network, options.ratio, options.batch
    choices = {"NETWORK": network, "SAMPLE_RATIO": ratio, "BATCH_SIZE": batch}
    drawn = ["--num-classes", str(options.classes)]
    data = drawn if options.rec is None else ["--rec", str(options.rec)]
    words = [*data, "--max-update", str(WARM_UP_UPDATES + options.updates)]
    named = f"{network}, {' '.join(data)}, ratio {ratio:g}, batch {batch} per rank"
    sections: list[str] = []
    for threads in options.threads:
        title = f"{named}, threads={threads} per rank"
        measured: dict[RunSetup, Rounds] = {_ALONE: []}
        for number in sorted({number for number in options.ranks if number > 1}):
            measured.update({RunSetup(number): [], RunSetup(1, number): []})
        for number in range(1, options.rounds + 1):
            for setup, rounds in measured.items():
                print(f"round {number}: {setup}, {title}", file=sys.stderr)
                many = setup._asdict()
                rounds.append(train(choices, words, **many, threads=threads, read=read_speed))
        sections += [f"## {title}", table(measured)]
    said = _SAID.format(options.rounds, options.updates, WARM_UP_UPDATES)
    measure.print_report("Whole training runs, on one rank and on several", said, sections)


def read_speed(metrics: Path) -> dict[str, float]:
    """The median images/s over all ranks of a run, and of rank 0's shares of time."""
    updates = read_updates(metrics)
    names = ("images_per_second", *_PARTS)
    return {name: statistics.median(update[name] for update in updates) for name in names}


def table(measured: Mapping[RunSetup, Rounds]) -> str:
    """Lay out the measurements."""
    header = ["", "images/s", "from … to", "efficiency", "÷ runs apart", *_PARTS]
    speeds = {
        setup: [sum(run["images_per_second"] for run in runs) for runs in rounds]
        for setup, rounds in measured.items()
    }
    lines = []
    for setup, own in speeds.items():
        apart = speeds.get(RunSetup(1, setup.ranks)) if setup.ranks > 1 else None
        efficiency = measure.ratio(own, speeds[_ALONE]) / (setup.ranks * setup.copies)
        shares = (
            statistics.median(run[part] for runs in measured[setup] for run in runs)
            for part in _PARTS
        )
        cells = [f"{statistics.median(own):.2f}", f"{min(own):.2f} … {max(own):.2f}"]
        cells += [f"{efficiency:.3f}", f"{measure.ratio(own, apart):.3f}" if apart else ""]
        lines.append([str(setup), *cells, *(f"{share:.1%}" for share in shares)])
    return measure.markdown_table(header, lines)


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = measure.parser("end_to_end", __doc__, threads=1, rounds=3)
    add = parser.add_argument
    add("--network", default="r18", help="the backbone (%(default)s)")
    classes_help = "how many there are (%(default)s)"
    add("--classes", type=positive_integer, default=100_000, help=classes_help)
    add("--ratio", type=measure.share, default=0.1, help="sampled share (%(default)s)")
    add("--batch", type=positive_integer, default=32, help="images per rank (%(default)s)")
    add("--ranks", type=measure.counts, default="1,2", help="how many (%(default)s)")
    updates_help = "measured ones of a turn (%(default)s)"
    add("--updates", type=positive_integer, default=8, help=updates_help)
    add("--rec", type=Path, help="folder of a record set (without: batches from memory)")
    options = parser.parse_args(argv)
    backbones.check(options.network)
    return options


if __name__ == "__main__":
    run_program(main)
