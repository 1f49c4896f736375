"""What each further rank adds, by Allreduce and with MXNet's parameter servers.

    python -m benchmarks.scaling [--model ResNet18] [--ranks 1,2,4] [--plot FILE] [--json FILE]
    NIC=eth0 python -m benchmarks.scaling -H ip1:2,ip2:2     on several hosts, too

Allreduce is ``--kv-store horovod``; the parameter servers are those of ``--kv-store dist_sync``, as
many as workers and twice as many. The batch per worker stays the same (weak scaling), so that ideal
scaling is N times the images/s of one worker. Processes that exchange nothing are measured beside:
what they take from each other (memory, caches, processors), no exchange can win back. A model of
latency and bandwidth, which the same run measures, reads the table on to more workers.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from backbones import classifiers
from benchmarks import measure
from benchmarks.scaling_report import ALONE, draw, model_table, rows_of, table
from benchmarks.scaling_runs import (
    ALLREDUCE,
    INDEPENDENT,
    SERVERS,
    ScalingCase,
    ScalingSetup,
    ScalingSpeed,
    parse_hosts,
    run,
)
from runtime.command_line import Parser, positive_integer
from runtime.errors import ConfigError, run_program


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
        measured = compare(case, setups(options.ranks, options.hosts), options.rounds)
        sections += [f"## {title}", table(measured), model_table(measured)]
        rows += rows_of(title, measured)
    print("\n\n".join([_introduction(options), *sections]))
    if options.plot:
        draw(measured, options.plot)
    if options.json:
        measure.write_json(options.json, rows)


def setups(ranks: Sequence[int], hosts: Mapping[str, int]) -> list[ScalingSetup]:
    """Everything that is measured: on this host, and where they fill ``hosts`` equally, there."""
    found = [ALONE]
    for workers in ranks:
        several = (INDEPENDENT, ALLREDUCE) if workers > 1 else ()
        found += [ScalingSetup(workers, kind) for kind in (*several, *SERVERS)]
    for workers in ranks if hosts else ():
        each, rest = divmod(workers, len(hosts))
        if not rest and 0 < each <= min(hosts.values()):
            names = tuple(hosts)
            found += [ScalingSetup(workers, kind, names) for kind in (ALLREDUCE, *SERVERS)]
    return found


def compare(
    case: ScalingCase, wanted: Sequence[ScalingSetup], rounds: int
) -> dict[ScalingSetup, list[ScalingSpeed]]:
    """Measure all setups in turns."""
    measured: dict[ScalingSetup, list[ScalingSpeed]] = {setup: [] for setup in wanted}
    for number in range(1, rounds + 1):
        for setup, speeds in measured.items():
            print(f"round {number}: {setup}, {case}", file=sys.stderr)
            speeds.append(run(case, setup))
    return measured


def _introduction(options: argparse.Namespace) -> str:
    return f"""# Allreduce and parameter servers

{measure.machine()}

Medians of {options.rounds} rounds of {options.updates} updates. The efficiency is the images/s over
those of as many workers that are each as fast as one alone; "of no exchange", over those of as many
processes on this host at the same time that exchange nothing. The exchange by itself is that of all
gradients of an update, while nothing computes. The megabytes are what a worker and a server send
for an update: computed, not measured. Servers take processors that workers could use, and so do
hosts that are one machine.

The model's exchange is start + messages · latency + bytes / bandwidth, as a few arrays show; its
workers have a processor each, and no exchange is hidden behind computation. Rows with "–" are the
model's alone."""


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.scaling",
        description="Measure Allreduce and parameter servers on several numbers of workers.",
    )
    parser.add_argument("--model", default="ResNet18", help="the classifier (%(default)s)")
    parser.add_argument(
        "--batch", type=positive_integer, default=16, help="images per worker (%(default)s)"
    )
    parser.add_argument(
        "--ranks",
        type=_counts,
        default="1,2,4",
        metavar="N,...",
        help="numbers of workers (%(default)s)",
    )
    parser.add_argument(
        "-H",
        "--hosts",
        default="",
        metavar="HOST:N,...",
        help="measure these hosts, too, and how many workers there may be on each; the variable "
        "NIC names the network interface between them",
    )
    parser.add_argument(
        "--updates", type=positive_integer, default=12, help="measured ones of a turn (%(default)s)"
    )
    parser.add_argument(
        "--plot", type=measure.file_to_write, metavar="FILE", help="draw efficiency over workers"
    )
    measure.add_options(parser)
    parser.set_defaults(threads="1", rounds=3)
    options = parser.parse_args(argv)
    classifiers.check(options.model)
    options.hosts = parse_hosts(options.hosts) if options.hosts else {}
    if options.hosts and "NIC" not in os.environ:
        raise ConfigError("-H needs the network interface between the hosts, as in NIC=eth0")
    return options


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({positive_integer(word.strip()) for word in text.split(",")}))


if __name__ == "__main__":
    run_program(main)
