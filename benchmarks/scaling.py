"""What each further rank adds, by Allreduce and with MXNet's parameter servers.

    python -m benchmarks.scaling [--model ResNet18] [--ranks 1,2,4]
    NIC=eth0 python -m benchmarks.scaling -H ip1:2,ip2:2     on several hosts, too

Allreduce is ``--kv-store horovod``; the parameter servers are those of ``--kv-store dist_sync``, as
many as workers and twice as many. The batch per worker stays the same (weak scaling), so that ideal
scaling is N times the images/s of one worker. Processes that exchange nothing are measured, too:
what they take from each other (memory, caches, processors), no exchange can win back. A model of
latency and bandwidth, which the same run measures, reads the table on to more workers.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Optional

from backbones import classifiers
from benchmarks import measure
from benchmarks.scaling_model import sent
from benchmarks.scaling_runs import (
    ALLREDUCE,
    INDEPENDENT,
    SERVERS,
    ScalingCase,
    ScalingSetup,
    ScalingSpeed,
    run,
)
from runtime import processors
from runtime.command_line import Parser, positive_integer
from runtime.errors import ConfigError, run_program

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*:[1-9][0-9]{0,4}")
_READ_ON = (2, 4, 8, 16, 32, 64)
_ALONE = ScalingSetup(1, INDEPENDENT)
_SAID = """Medians of {} rounds of {} updates. The efficiency is the images/s over those of as many
workers that are each as fast as one alone; "of no exchange", over those of as many processes on
this host at the same time that exchange nothing. The exchange by itself is that of all gradients of
an update, while nothing computes. The megabytes are what a worker and a server send for an update:
computed, not measured. Servers take processors that workers could use, and so do hosts that are one
machine.

The model's exchange is start + messages · latency + bytes / bandwidth, as a few arrays show; its
workers have a processor each, and no exchange is hidden behind computation. Rows with "–" are the
model's alone."""

Measurements = Mapping[ScalingSetup, Sequence[ScalingSpeed]]
"""The speeds of a setup, by round."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure and print the report."""
    options = _parse(argv)
    sections: list[str] = []
    for threads in options.threads:
        case = ScalingCase(options.model, options.batch, options.updates, threads)
        measured: dict[ScalingSetup, list[ScalingSpeed]] = {
            setup: [] for setup in setups(options.ranks, options.hosts)
        }
        for number in range(1, options.rounds + 1):
            for setup, speeds in measured.items():
                print(f"round {number}: {setup}, {case}", file=sys.stderr)
                speeds.append(run(case, setup))
        title = f"{case.model}, batch {case.batch} per worker, threads={threads} per worker"
        sections += [f"## {title}", table(measured), _links(measured), model_table(measured)]
    said = _SAID.format(options.rounds, options.updates)
    measure.print_report("Allreduce and parameter servers", said, sections)


def setups(ranks: Sequence[int], hosts: Mapping[str, int]) -> list[ScalingSetup]:
    """Everything that is measured: on this host, and where they fill ``hosts`` equally, there."""
    found = [_ALONE]
    for workers in ranks:
        several = (INDEPENDENT, ALLREDUCE) if workers > 1 else ()
        found += [ScalingSetup(workers, kind) for kind in (*several, *SERVERS)]
    for workers in ranks if hosts else ():
        each, rest = divmod(workers, len(hosts))
        if not rest and 0 < each <= min(hosts.values()):
            names = tuple(hosts)
            found += [ScalingSetup(workers, kind, names) for kind in (ALLREDUCE, *SERVERS)]
    return found


def efficiency(setup: ScalingSetup, measured: Measurements, other: ScalingSetup = _ALONE) -> float:
    """Images/s per worker, over those of another setup: the median of the rounds' ratios."""
    own, others = (
        [one.images_per_second / each.workers for one in measured[each]] for each in (setup, other)
    )
    return measure.ratio(own, others)


def _exchange_seconds(setup: ScalingSetup, measured: Measurements) -> float:
    return statistics.median(one.exchange for one in measured[setup])


def bytes_sent(setup: ScalingSetup, parameter_bytes: int) -> tuple[float, float]:
    """The bytes that a worker and a server send for an update, computed, not measured.

    A worker of parameter servers sends all gradients; the servers together send all weights to
    every worker.
    """
    servers = setup.exchange.servers_per_worker * setup.workers
    if servers:
        return float(parameter_bytes), setup.workers * parameter_bytes / servers
    return sent(setup.workers, parameter_bytes) if setup.exchange == ALLREDUCE else 0.0, 0.0


def predict(setup: ScalingSetup, measured: Measurements) -> tuple[float, float]:
    """The model's seconds of an exchange, and efficiency, from the fewest workers of its line.

    Each worker has a processor, and nothing of the exchange is hidden: where gradients are computed
    on processors, it takes the same ones. What a worker and a server of as many parameter servers
    send does not grow with their number, nor, therefore, does the time of that exchange.
    """
    fewest = min(each for each in measured if each.line == setup.line and each.workers > 1)
    seconds = _exchange_seconds(fewest, measured)
    if setup.exchange == ALLREDUCE:
        links = [(one.link, one.messages) for one in measured[fewest]]
        seconds = statistics.median(
            link.allreduce(setup.workers, messages) for link, messages in links if link
        )
    # As many processes as there are processors: what more of them lose, they lose to waiting.
    beside = max(
        each
        for each in measured
        if each.exchange == INDEPENDENT and each.workers <= processors.available()
    )
    alone = statistics.median(one.update for one in measured[_ALONE])
    return seconds, alone / (alone / efficiency(beside, measured) + seconds)


def table(measured: Measurements) -> str:
    """Lay out the measurements."""
    header = ["measured", "images/s", "from … to", "efficiency", "of no exchange"]
    header += ["exchange by itself, ms", "MB per worker", "MB per server"]
    rows = []
    for setup, speeds in measured.items():
        every = [one.images_per_second for one in speeds]
        worker, server = bytes_sent(setup, sum(speeds[0].messages))
        row = [
            str(setup),
            f"{statistics.median(every):.1f}",
            f"{min(every):.1f} … {max(every):.1f}",
            f"{efficiency(setup, measured):.3f}",
            *("", "", "", ""),
        ]
        if worker:
            beside = ScalingSetup(setup.workers, INDEPENDENT)
            row[4] = f"{efficiency(setup, measured, beside):.3f}"
            row[5] = f"{_exchange_seconds(setup, measured) * 1e3:.1f}"
            row[6] = f"{worker / 1e6:.2f}"
            row[7] = f"{server / 1e6:.2f}" if server else ""
        rows.append(row)
    return measure.markdown_table(header, rows)


def model_table(measured: Measurements) -> str:
    """Lay out the model for up to 64 workers, beside what was measured."""
    header = ["model", "exchange, ms", "measured", "efficiency", "measured"]
    several = [one for one in measured if one.workers > 1 and one.exchange != INDEPENDENT]
    rows = []
    for line in {setup.line: setup for setup in several}.values():
        for workers in _READ_ON:
            setup = line._replace(workers=workers)
            seconds, predicted = predict(setup, measured)
            exchanged, found = "–", "–"
            if setup in measured:
                exchanged = f"{_exchange_seconds(setup, measured) * 1e3:.1f}"
                found = f"{efficiency(setup, measured):.3f}"
            modelled = f"{seconds * 1e3:.1f}", f"{predicted:.3f}"
            rows.append([str(setup), modelled[0], exchanged, modelled[1], found])
    return measure.markdown_table(header, rows)


def _links(measured: Measurements) -> str:
    """The start, latency and bandwidth of links, from which speeds are predicted."""
    described = []
    for setup, speeds in measured.items():
        links = [one.link for one in speeds if one.link is not None]
        if links:
            start, latency, bandwidth = (statistics.median(part) for part in zip(*links))
            described.append(
                f"- {setup}: {len(speeds[0].messages)} arrays of "
                f"{sum(speeds[0].messages) / 1e6:.1f} MB, start {start * 1e3:.2f} ms, "
                f"latency {latency * 1e6:.0f} µs, bandwidth {bandwidth / 1e9:.2f} GB/s"
            )
    return "\n".join(described)


def _hosts(text: str) -> dict[str, int]:
    """Convert ``ip1:2,ip2:2``: how many workers there may be on each host."""
    for word in text.split(","):
        if not _HOST.fullmatch(word):
            raise argparse.ArgumentTypeError(
                f"{word!r} is not a host and its number of workers; write ip1:2,ip2:2"
            )
    return {host: int(slots) for host, slots in (word.split(":") for word in text.split(","))}


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.scaling",
        description="Measure Allreduce and parameter servers on several numbers of workers.",
    )
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
    measure.add_options(parser, threads=1, rounds=3)
    options = parser.parse_args(argv)
    classifiers.check(options.model)
    options.ranks = tuple(sorted(set(options.ranks)))
    if options.hosts and "NIC" not in os.environ:
        raise ConfigError("-H needs the network interface between the hosts, as in NIC=eth0")
    return options


if __name__ == "__main__":
    run_program(main)
