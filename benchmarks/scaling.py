"""What each further rank adds, by Allreduce and with MXNet's parameter servers.

    python -m benchmarks.scaling [--model ResNet18] [--ranks 1,2,4]
    NIC=eth0 python -m benchmarks.scaling -H ip1:2,ip2:2     on several hosts, too

Allreduce is ``--kv-store horovod``; the parameter servers are those of ``--kv-store dist_sync``, as
many as workers and twice as many. The batch per worker stays the same (weak scaling), so that ideal
scaling is N times the images/s of one worker. Processes that exchange nothing are measured, too:
what they take from each other (memory, caches, processors), no exchange can win back. A model that
reads an Allreduce on to more ranks is in ``docs/lab/allreduce.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Optional

import numpy as np

from backbones import classifiers
from benchmarks import measure
from benchmarks.training_runs import run_all
from parallel.host_lists import read_list, slots_by_host
from runtime.command_line import positive_integer
from runtime.errors import ConfigError, run_program
from training.config.images import HOROVOD

NONE = "none"
"""Instead of a scheme of ``--kv-store``: gradients are not exchanged."""
RESULT = "scaling result "
"""Begins the line that a worker prints."""
_LOCAL = "localhost"
_SAID = """Medians of {} rounds of {} updates. The efficiency is the images/s over those of as many
workers that are each as fast as one alone; "of no exchange", over those of as many processes on
this host at the same time that exchange nothing. The exchange by itself is that of all gradients of
an update, while nothing computes. Servers take processors that workers could use, and so do hosts
that are one machine."""


class ScalingSetup(NamedTuple):
    """The number of workers, how they exchange gradients, and on which hosts."""

    workers: int
    scheme: str
    """Value of ``--kv-store``, or ``NONE``."""
    servers_per_worker: int = 0
    hosts: tuple[str, ...] = (_LOCAL,)

    def __str__(self) -> str:
        """Its name in the report."""
        name = "Allreduce" if self.scheme == HOROVOD else "no exchange"
        if self.servers_per_worker:
            name = f"parameter server {self.servers_per_worker}:1"
        where = f" on {len(self.hosts)} hosts" if len(self.hosts) > 1 else ""
        return f"{name}{where}, {self.workers} worker{'s' * (self.workers > 1)}"


class ScalingSpeed(NamedTuple):
    """Speed of one job."""

    images_per_second: float
    """Over all workers, at the pace of the slowest; medians of updates."""
    exchange: float
    """Seconds of the exchange of an update by itself, for the slowest worker."""


_ALONE = ScalingSetup(1, NONE)
Measurements = Mapping[ScalingSetup, Sequence[ScalingSpeed]]
"""The speeds of a setup, by round."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure and print the report."""
    options = _parse(argv)
    sections: list[str] = []
    for threads in options.threads:
        title = f"{options.model}, batch {options.batch} per worker, threads={threads} per worker"
        measured: dict[ScalingSetup, list[ScalingSpeed]] = {
            setup: [] for setup in setups(options.ranks, options.hosts)
        }
        for number in range(1, options.rounds + 1):
            for setup, speeds in measured.items():
                print(f"round {number}: {setup}, {title}", file=sys.stderr)
                speeds.append(run(options, threads, setup))
        sections += [f"## {title}", table(measured)]
    said = _SAID.format(options.rounds, options.updates)
    measure.print_report("Allreduce and parameter servers", said, sections)


def setups(ranks: Sequence[int], hosts: Mapping[str, int]) -> list[ScalingSetup]:
    """Everything that is measured: on this host, and where they fill ``hosts`` equally, there."""
    exchanges = ((HOROVOD, 0), ("dist_sync", 1), ("dist_sync", 2))
    found = [_ALONE]
    for workers in ranks:
        several = ((NONE, 0), *exchanges) if workers > 1 else exchanges[1:]
        found += [ScalingSetup(workers, *exchange) for exchange in several]
    for workers in ranks if hosts else ():
        each, rest = divmod(workers, len(hosts))
        if not rest and 0 < each <= min(hosts.values()):
            found += [ScalingSetup(workers, *exchange, tuple(hosts)) for exchange in exchanges]
    return found


def run(options: argparse.Namespace, threads: int, setup: ScalingSetup) -> ScalingSpeed:
    """Train on some workers, as many on each host.

    Raises:
        RuntimeError: a process failed; with its output.
    """
    worker = [sys.executable, "-m", "benchmarks.scaling_worker", "--kv-store", setup.scheme]
    worker += [options.model, str(options.batch), str(options.updates)]
    limits = {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "NUMBA")}
    with TemporaryDirectory() as folder:
        copies = 1
        if setup.scheme == NONE:
            copies = setup.workers
            worker += [folder, str(copies)]
        command = [*_launcher(setup, Path(folder)), *worker]
        outputs = run_all([(command, {**os.environ, **limits})] * copies)
    return read("\n".join(outputs), options.batch, setup.workers)


def _launcher(setup: ScalingSetup, folder: Path) -> list[str]:
    """The launcher of the workers of a setup, as users call it."""
    workers, each = str(setup.workers), setup.workers // len(setup.hosts)
    if setup.scheme == NONE:
        return []
    if setup.scheme == HOROVOD:
        slots = ",".join(f"{host}:{each}" for host in setup.hosts)
        return [str(Path(sys.executable).with_name("horovodrun")), "-np", workers, "-H", slots]
    servers = str(setup.servers_per_worker * setup.workers)
    launcher = [sys.executable, "-m", "parallel.launch", "-n", workers, "-s", servers]
    if setup.hosts != (_LOCAL,):
        hosts = folder / "hosts"
        hosts.write_text("".join(f"{host}\n" * each for host in setup.hosts))
        launcher += ["-H", str(hosts), "-i", os.environ["NIC"], "--launcher", "ssh"]
    return [*launcher, "--"]


def read(output: str, batch: int, workers: int) -> ScalingSpeed:
    """Read the output of a job's workers.

    Processes that exchange nothing begin together, but do not end so: their updates count while all
    are at work.

    Raises:
        RuntimeError: some have not, or were never at work together.
    """
    # Not by lines: a launcher may put two workers' on one.
    decode = json.JSONDecoder().raw_decode
    results = [decode(output, match.end())[0] for match in re.finditer(RESULT, output)]
    if len(results) != workers:
        raise RuntimeError(f"{len(results)} of {workers} workers have a result:\n{output}")
    exchange, clocks = max(one["exchange"] for one in results), [one["ends"] for one in results]
    if not exchange:
        first, last = max(clock[0] for clock in clocks), min(clock[-1] for clock in clocks)
        clocks = [[end for end in clock if first <= end <= last] for clock in clocks]
    if min(map(len, clocks)) < 2:
        raise RuntimeError("the processes were hardly at work together; give more --updates")
    update = max(float(np.median(np.diff(clock))) for clock in clocks)
    return ScalingSpeed(workers * batch / update, exchange)


def efficiency(setup: ScalingSetup, measured: Measurements, other: ScalingSetup = _ALONE) -> float:
    """Images/s per worker, over those of another setup: the median of the rounds' ratios."""
    own, others = (
        [one.images_per_second / each.workers for one in measured[each]] for each in (setup, other)
    )
    return measure.ratio(own, others)


def table(measured: Measurements) -> str:
    """Lay out the measurements."""
    header = ["measured", "images/s", "from … to", "efficiency", "of no exchange"]
    header.append("exchange by itself, ms")
    rows = []
    for setup, speeds in measured.items():
        every = [one.images_per_second for one in speeds]
        row = [
            str(setup),
            f"{statistics.median(every):.1f}",
            f"{min(every):.1f} … {max(every):.1f}",
            f"{efficiency(setup, measured):.3f}",
            *("", ""),
        ]
        if setup.scheme != NONE:
            beside = ScalingSetup(setup.workers, NONE)
            row[4] = f"{efficiency(setup, measured, beside):.3f}"
            row[5] = f"{statistics.median(one.exchange for one in speeds) * 1e3:.1f}"
        rows.append(row)
    return measure.markdown_table(header, rows)


def _hosts(text: str) -> dict[str, int]:
    """Convert ``ip1:2,ip2:2``: how many workers there may be on each host."""
    return {host: slots or 1 for host, slots in slots_by_host(read_list(text)).items()}


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = measure.parser("scaling", __doc__, threads=1, rounds=3)
    add = parser.add_argument
    add("--model", default="ResNet18", help="the classifier (%(default)s)")
    add("--batch", type=positive_integer, default=16, help="images per worker (%(default)s)")
    add("--ranks", type=measure.counts, default="1,2,4", help="numbers of workers (%(default)s)")
    hosts_help = (
        "measure these hosts, too, and how many workers there may be on each; the variable NIC "
        "names the network interface between them"
    )
    add("-H", "--hosts", type=_hosts, default={}, metavar="HOST:N,...", help=hosts_help)
    updates_help = "measured ones of a turn (%(default)s)"
    add("--updates", type=positive_integer, default=12, help=updates_help)
    options = parser.parse_args(argv)
    classifiers.check(options.model)
    options.ranks = tuple(sorted(set(options.ranks)))
    if options.hosts and "NIC" not in os.environ:
        raise ConfigError("-H needs the network interface between the hosts, as in NIC=eth0")
    return options


if __name__ == "__main__":
    run_program(main)
