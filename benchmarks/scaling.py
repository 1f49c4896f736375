"""What each further rank adds, by Allreduce and with MXNet's parameter servers, on one machine.

    python -m benchmarks.scaling [--model ResNet18] [--ranks 4] [--plot FILE] [--json FILE]

Allreduce is ``--kv-store horovod``; the parameter servers are those of ``--kv-store dist_sync``, as
many as workers and twice as many. The batch per worker stays the same (weak scaling), so that ideal
scaling is N times the images/s of one worker.
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

from matplotlib.figure import Figure

from backbones import classifiers
from benchmarks import measure
from benchmarks.scaling_runs import ALLREDUCE, ExchangeKind, ScalingCase, ScalingSpeed, run
from runtime.command_line import Parser, positive_integer
from runtime.environment import visible_threads
from runtime.errors import run_program

EXCHANGES = (ALLREDUCE, ExchangeKind(1), ExchangeKind(2))


class ScalingSetup(NamedTuple):
    """The number of workers, and how they exchange gradients."""

    workers: int
    exchange: ExchangeKind

    def __str__(self) -> str:
        """Its name in the report."""
        return f"{self.exchange}, {self.workers} worker{'s' * (self.workers > 1)}"


Measurements = Mapping[ScalingSetup, Sequence[ScalingSpeed]]
"""The speeds of a setup, by round."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print the report, draw the plot and write the rows."""
    options = _parse(argv)
    # Otherwise the jobs would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    sections: list[str] = []
    rows: list[measure.Row] = []
    for threads in options.threads:
        case = ScalingCase(options.model, options.batch, options.updates, threads)
        title = f"{case.model}, batch {case.batch} per worker, threads={threads} per worker"
        measured = compare(case, options.ranks, options.rounds)
        sections += [f"## {title}", table(measured)]
        rows += _rows(title, measured)
    print("\n\n".join([_introduction(options), *sections]))
    if options.plot:
        draw(measured, options.plot)
    if options.json:
        measure.write_json(options.json, rows)


def compare(case: ScalingCase, ranks: int, rounds: int) -> dict[ScalingSetup, list[ScalingSpeed]]:
    """Measure all numbers of workers and all exchanges in turns."""
    measured: dict[ScalingSetup, list[ScalingSpeed]] = {
        ScalingSetup(workers, exchange): []
        for workers in range(1, ranks + 1)
        for exchange in EXCHANGES
    }
    for number in range(1, rounds + 1):
        for setup, speeds in measured.items():
            print(f"round {number}: {setup}, {case}", file=sys.stderr)
            speeds.append(run(case, setup.exchange, setup.workers))
    return measured


def speed(speeds: Sequence[ScalingSpeed]) -> float:
    """The median images/s over the rounds."""
    return statistics.median(one.images_per_second for one in speeds)


def efficiency(setup: ScalingSetup, measured: Measurements) -> float:
    """Images/s divided by the number of workers times the images/s of a single one."""
    alone = speed(measured[ScalingSetup(1, ALLREDUCE)])
    return speed(measured[setup]) / (setup.workers * alone)


def bytes_sent(setup: ScalingSetup, parameter_bytes: int) -> tuple[float, float]:
    """What a worker and what a server sends for an update, computed, not measured.

    A ring sends each gradient on once to be summed and once to be known, ``2 (n - 1) / n`` of all
    (Patarasuk and Yuan 2009, Bandwidth Optimal All-reduce Algorithms). A worker of a parameter
    server sends all gradients; the servers together send all weights to every worker.
    """
    servers = setup.exchange.servers_per_worker * setup.workers
    if not servers:
        return 2 * (setup.workers - 1) / setup.workers * parameter_bytes, 0.0
    return float(parameter_bytes), setup.workers * parameter_bytes / servers


def table(measured: Measurements) -> str:
    """Lay out the measurements."""
    header = ["", "images/s", "from … to", "efficiency", "MB per worker", "MB per server"]
    lines = []
    for setup, speeds in measured.items():
        every = [one.images_per_second for one in speeds]
        worker, server = bytes_sent(setup, speeds[0].parameter_bytes)
        lines.append(
            [
                str(setup),
                f"{speed(speeds):.1f}",
                f"{min(every):.1f} … {max(every):.1f}",
                f"{efficiency(setup, measured):.3f}",
                f"{worker / 1e6:.2f}",
                f"{server / 1e6:.2f}" if setup.exchange.servers_per_worker else "",
            ]
        )
    return measure.markdown_table(header, lines)


def draw(measured: Measurements, path: Path) -> None:
    """Draw images/s over the number of workers, a line for each exchange, and the ideal one."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    counts = sorted({setup.workers for setup in measured})
    alone = speed(measured[ScalingSetup(1, ALLREDUCE)])
    axes.plot(counts, [alone * count for count in counts], "--", color="gray", label="ideal")
    for exchange in EXCHANGES:
        speeds = [speed(measured[ScalingSetup(count, exchange)]) for count in counts]
        axes.plot(counts, speeds, marker="o", label=str(exchange))
    axes.set(xlabel="workers", ylabel="images/s", xticks=counts)
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, dpi=150)


def _rows(title: str, measured: Measurements) -> list[measure.Row]:
    rows = []
    for setup, speeds in measured.items():
        worker, server = bytes_sent(setup, speeds[0].parameter_bytes)
        rows += [
            measure.Row(title, str(setup), speed(speeds), "images/s"),
            measure.Row(title, str(setup), efficiency(setup, measured), "of ideal scaling"),
            measure.Row(title, str(setup), worker, "bytes sent per worker and update"),
            measure.Row(title, str(setup), server, "bytes sent per server and update"),
        ]
    return rows


def _introduction(options: argparse.Namespace) -> str:
    return f"""# Allreduce and parameter servers

{measure.machine()}

Medians of {options.rounds} rounds of {options.updates} updates. The efficiency is the images/s over
those of as many workers that are each as fast as one that exchanges nothing. The megabytes are what
a worker and a server send for an update: computed, not measured. Servers take processors that the
workers of one machine could use."""


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.scaling",
        description="Measure Allreduce and parameter servers on 1 to N workers.",
    )
    parser.add_argument("--model", default="ResNet18", help="the classifier (%(default)s)")
    parser.add_argument(
        "--batch", type=positive_integer, default=32, help="images per worker (%(default)s)"
    )
    parser.add_argument(
        "--ranks",
        type=positive_integer,
        default=max(2, visible_threads()),
        help="the most workers (%(default)s)",
    )
    parser.add_argument(
        "--updates", type=positive_integer, default=8, help="measured ones of a turn (%(default)s)"
    )
    parser.add_argument(
        "--plot", type=measure.file_to_write, metavar="FILE", help="draw images/s over workers"
    )
    measure.add_options(parser)
    parser.set_defaults(threads="1", rounds=3)
    options = parser.parse_args(argv)
    classifiers.check(options.model)
    return options


if __name__ == "__main__":
    run_program(main)
