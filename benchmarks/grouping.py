"""BSP, ASP, SSP and GSP on unequal workers of one machine: accuracy over wall-clock time.

    python -m benchmarks.grouping --data-dir mnist [--slowdown 1,1,4,4] [--plot FILE] [--json FILE]

Slow machines are simulated: their workers sleep for a multiple of the processor time that their
steps take. Groups and shares are computed from these factors as ``python -m parallel.autogroup``
computes them from measured speeds. Worker 0 saves its weights every few steps; they are evaluated
after the run, outside of the measured time.
"""

from __future__ import annotations

import argparse
import math
import signal
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from matplotlib.figure import Figure

from benchmarks import measure
from benchmarks.grouping_runs import SCHEMES, GroupingCase, GroupingRun, run
from runtime.command_line import Parser, positive_integer
from runtime.errors import run_program

Measurements = Mapping[str, Sequence[GroupingRun]]
"""The runs of each scheme, by seed."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Train, print the report, draw the plot and write the rows."""
    options = _parse(argv)
    # Otherwise the jobs would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    case = GroupingCase(
        options.data_dir.resolve(),
        options.slowdown,
        options.servers,
        options.epochs,
        options.staleness,
        options.target,
    )
    measured = compare(case, options.seeds, options.schemes)
    print("\n\n".join([_introduction(case, options.seeds), table(measured, case.target)]))
    if options.plot:
        draw(measured, case.target, options.plot)
    if options.json:
        measure.write_json(options.json, _rows(case, measured))


def compare(
    case: GroupingCase, seeds: int, schemes: Sequence[str] = tuple(SCHEMES)
) -> dict[str, list[GroupingRun]]:
    """Let the schemes take turns."""
    measured: dict[str, list[GroupingRun]] = {scheme: [] for scheme in schemes}
    for seed in range(1, seeds + 1):
        for scheme, runs in measured.items():
            one = run(case, scheme, seed)
            runs.append(one)
            # Seeds take many minutes each: what is known is said at once.
            reached = f"{case.target:g} after {one.seconds_to(case.target):.1f} s"
            print(f"seed {seed}, {SCHEMES[scheme]}: {reached}, {one.final:.4f}", file=sys.stderr)
    return measured


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
        ratio = f"{gain(measured, scheme, target):.2f}" if "dist_sync" in measured else ""
        lines.append([SCHEMES[scheme], first, ratio, *others])
    return measure.markdown_table(header, lines)


def gain(measured: Measurements, scheme: str, target: float) -> float:
    """How many times sooner than BSP a scheme reaches the target; NaN if neither does. Medians."""
    own, bsp = (
        statistics.median(one.seconds_to(target) for one in measured[name])
        for name in (scheme, "dist_sync")
    )
    return math.nan if math.isinf(own) and math.isinf(bsp) else bsp / own


def draw(measured: Measurements, target: float, path: Path) -> None:
    """Draw the errors of all runs over time, a color for each scheme."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for color, (scheme, runs) in enumerate(measured.items()):
        for number, one in enumerate(runs):
            errors = [max(1 - accuracy, 1e-4) for accuracy in one.accuracies]
            label = SCHEMES[scheme] if number == 0 else None
            axes.plot(one.seconds, errors, color=f"C{color}", linewidth=1, label=label)
    axes.axhline(1 - target, color="gray", linestyle="--", label=f"accuracy {target:g}")
    axes.set(xlabel="seconds since the first step", ylabel="error on the validation images")
    axes.set_yscale("log")
    axes.legend()
    figure.savefig(path, dpi=150)


def _spread(values: Sequence[float], form: str) -> str:
    every = ", ".join(format(value, form) for value in values)
    return f"{statistics.median(values):{form}} ({every})"


def _rows(case: GroupingCase, measured: Measurements) -> list[measure.Row]:
    title = f"MNIST, slowdown {','.join(map(str, case.slowdown))}, {case.servers} servers"
    rows = []
    for scheme, runs in measured.items():
        name = SCHEMES[scheme]
        numbers: dict[str, list[float]] = {
            f"seconds to {case.target:g}": [one.seconds_to(case.target) for one in runs],
            "final accuracy": [one.final for one in runs],
            "updates": [one.updates for one in runs],
            "mean staleness": [one.staleness for one in runs],
            "seconds in all": [one.seconds[-1] for one in runs],
        }
        rows += [
            measure.Row(title, name, float(statistics.median(values)), unit)
            for unit, values in numbers.items()
        ]
        # The curves, for pictures.
        rows += [
            measure.Row(title, f"{name}, seed {seed}, after {seconds:.2f} s", accuracy, "accuracy")
            for seed, one in enumerate(runs, 1)
            for seconds, accuracy in zip(one.seconds, one.accuracies)
        ]
    return rows


def _introduction(case: GroupingCase, seeds: int) -> str:
    grouped = " and ".join(", ".join(map(str, group)) for group in case.groups)
    return f"""# Four schemes on unequal workers

{measure.machine()}

LeNet on MNIST, {case.epochs} epochs, {len(case.slowdown)} workers that are
{", ".join(f"{factor:g}" for factor in case.slowdown)} times slower than they could be, on one
machine with {case.servers} servers. Groups of GSP: workers {grouped}; bound of SSP:
{case.staleness} steps. Medians of {seeds} seeds, and each seed."""


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.grouping",
        description="Train MNIST with BSP, ASP, SSP and GSP on workers of unequal speed.",
    )
    parser.add_argument(
        "--data-dir", type=Path, required=True, metavar="DIR", help="files of MNIST"
    )
    parser.add_argument(
        "--slowdown",
        type=_factors,
        default="1,1,4,4",
        help="how many times slower each worker is made (%(default)s)",
    )
    parser.add_argument("--servers", type=positive_integer, default=1, help="(%(default)s)")
    parser.add_argument("--epochs", type=positive_integer, default=3, help="(%(default)s)")
    parser.add_argument(
        "--schemes",
        type=_schemes,
        default=",".join(SCHEMES.values()),
        help="in this order (%(default)s)",
    )
    parser.add_argument("--seeds", type=positive_integer, default=3, help="runs (%(default)s)")
    parser.add_argument(
        "--staleness", type=positive_integer, default=3, help="bound of SSP (%(default)s)"
    )
    parser.add_argument(
        "--target", type=float, default=0.97, help="accuracy to be reached (%(default)s)"
    )
    parser.add_argument(
        "--plot", type=measure.file_to_write, metavar="FILE", help="draw errors over time"
    )
    parser.add_argument(
        "--json",
        type=measure.file_to_write,
        metavar="FILE",
        help='write a list of {"case", "name", "value", "unit"}',
    )
    return parser.parse_args(argv)


def _schemes(text: str) -> list[str]:
    keys = {name: key for key, name in SCHEMES.items()}
    wanted = text.split(",")
    if not set(wanted) <= set(keys) or len(set(wanted)) != len(wanted):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of {', '.join(keys)}")
    return [keys[name] for name in wanted]


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
