"""BSP, ASP, SSP and GSP on unequal workers of one machine: accuracy over wall-clock time.

    python -m benchmarks.grouping --data-dir mnist [--slowdown 1,1,4,4] [--json FILE]

Slow machines are simulated: their workers sleep for a multiple of the processor time that their
steps take. Groups and shares are computed from these factors as ``python -m parallel.autogroup``
computes them from measured speeds. Worker 0 saves its weights every few steps; they are evaluated
after the run, outside of the measured time.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from benchmarks import measure
from benchmarks.grouping_runs import SCHEMES, GroupingCase, GroupingRun, run
from runtime.command_line import Parser, positive_integer
from runtime.errors import run_program

_SAID = """LeNet on MNIST, {} epochs, {} workers that are {} times slower than they could be, on one
machine with {} servers. Groups of GSP: workers {}; bound of SSP: {} steps. Medians of {} seeds, and
each seed."""

Measurements = Mapping[str, Sequence[GroupingRun]]
"""The runs of each scheme, by seed."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Train, print the report and write the curves."""
    options = _parse(argv)
    case = GroupingCase(
        options.data_dir.resolve(),
        options.slowdown,
        options.servers,
        options.epochs,
        options.staleness,
        options.target,
    )
    measured: dict[str, list[GroupingRun]] = {scheme: [] for scheme in SCHEMES}
    for seed in range(1, options.seeds + 1):
        for scheme, runs in measured.items():
            one = run(case, scheme, seed)
            runs.append(one)
            # Seeds take many minutes each: what is known is said at once.
            reached = f"{case.target:g} after {one.seconds_to(case.target):.1f} s"
            print(f"seed {seed}, {SCHEMES[scheme]}: {reached}, {one.final:.4f}", file=sys.stderr)
    said = _SAID.format(
        case.epochs,
        len(case.slowdown),
        ", ".join(f"{factor:g}" for factor in case.slowdown),
        case.servers,
        " and ".join(", ".join(map(str, group)) for group in case.groups),
        case.staleness,
        options.seeds,
    )
    found = table(measured, case.target)
    measure.print_report("Four schemes on unequal workers", said, [found])
    if options.json:
        text = json.dumps(curves(case, measured), indent=1) + "\n"
        options.json.write_text(text, encoding="utf-8")


def table(measured: Measurements, target: float) -> str:
    """Lay out the measurements: the median, and every seed."""
    header = ["", f"s to {target:g}", "× BSP", "final accuracy", "updates", "staleness", "s in all"]
    columns: list[tuple[Callable[[GroupingRun], float], str]] = [
        (lambda one: one.seconds_to(target), ".1f"),
        (lambda one: one.final, ".4f"),
        (lambda one: one.updates, ".0f"),
        (lambda one: one.staleness, ".2f"),
        (lambda one: one.seconds[-1], ".1f"),
    ]
    lines = []
    for scheme, runs in measured.items():
        first, *others = [_spread([value(one) for one in runs], form) for value, form in columns]
        own, bsp = (
            statistics.median(one.seconds_to(target) for one in measured[name])
            for name in (scheme, "dist_sync")
        )
        gain = math.nan if math.isinf(own) and math.isinf(bsp) else bsp / own
        lines.append([SCHEMES[scheme], first, f"{gain:.2f}", *others])
    return measure.markdown_table(header, lines)


def _spread(values: Sequence[float], form: str) -> str:
    every = ", ".join(format(value, form) for value in values)
    return f"{statistics.median(values):{form}} ({every})"


def curves(case: GroupingCase, measured: Measurements) -> list[dict[str, Any]]:
    """Return the accuracy of each run over time."""
    title = f"MNIST, slowdown {','.join(map(str, case.slowdown))}, {case.servers} servers"
    return [
        {
            "case": title,
            "name": f"{SCHEMES[scheme]}, seed {seed}, after {seconds:.2f} s",
            "value": accuracy,
            "unit": "accuracy",
        }
        for scheme, runs in measured.items()
        for seed, one in enumerate(runs, 1)
        for seconds, accuracy in zip(one.seconds, one.accuracies)
    ]


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.grouping",
        description="Train MNIST with BSP, ASP, SSP and GSP on workers of unequal speed.",
    )
    add = parser.add_argument
    add("--data-dir", type=Path, required=True, metavar="DIR", help="files of MNIST")
    slowdown_help = "how many times slower each worker is made (%(default)s)"
    add("--slowdown", type=_factors, default="1,1,4,4", help=slowdown_help)
    add("--servers", type=positive_integer, default=1, help="(%(default)s)")
    add("--epochs", type=positive_integer, default=3, help="(%(default)s)")
    add("--seeds", type=positive_integer, default=3, help="runs (%(default)s)")
    add("--staleness", type=positive_integer, default=3, help="bound of SSP (%(default)s)")
    add("--target", type=float, default=0.97, help="accuracy to be reached (%(default)s)")
    add("--json", type=measure.file_to_write, metavar="FILE", help="write the curves")
    return parser.parse_args(argv)


def _factors(text: str) -> tuple[float, ...]:
    try:
        factors = tuple(float(word) for word in text.split(","))
    except ValueError:
        factors = ()
    if not factors or not all(1 <= factor < math.inf for factor in factors):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers from 1, such as 1,1,4,4")
    return factors


if __name__ == "__main__":
    run_program(main)
