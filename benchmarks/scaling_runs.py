"""Jobs of ``benchmarks.scaling_worker``, under horovodrun, ``parallel.launch`` or by themselves."""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Optional

from benchmarks.scaling_model import Link, Probe
from benchmarks.training_runs import run_all
from training.config.exchange import HOROVOD

LOCAL = "localhost"
NONE = "none"
"""Instead of a scheme of ``--kv-store``: gradients are not exchanged."""
RESULT = "scaling result "
"""Begins the line that a worker prints."""


class ExchangeKind(NamedTuple):
    """How workers exchange gradients."""

    scheme: str
    """Of ``--kv-store``, or that of processes that exchange nothing."""
    servers_per_worker: int = 0

    def __str__(self) -> str:
        """Its name in the report."""
        if self.servers_per_worker:
            return f"parameter server {self.servers_per_worker}:1"
        return "Allreduce" if self.scheme == HOROVOD else "no exchange"


ALLREDUCE = ExchangeKind(HOROVOD)
INDEPENDENT = ExchangeKind(NONE)
SERVERS = (ExchangeKind("dist_sync", 1), ExchangeKind("dist_sync", 2))


class ScalingSetup(NamedTuple):
    """The number of workers, how they exchange gradients, and on which hosts."""

    workers: int
    exchange: ExchangeKind
    hosts: tuple[str, ...] = (LOCAL,)

    def __str__(self) -> str:
        """Its name in the report."""
        return f"{self.line}, {self.workers} worker{'s' * (self.workers > 1)}"

    @property
    def line(self) -> str:
        """The name of all setups that differ in the number of workers alone."""
        where = f" on {len(self.hosts)} hosts" if len(self.hosts) > 1 else ""
        return f"{self.exchange}{where}"


class ScalingCase(NamedTuple):
    """What every worker trains."""

    model: str
    batch: int
    updates: int
    threads: int


class ScalingSpeed(NamedTuple):
    """Of one job."""

    images_per_second: float
    """Over all workers, at the pace of the slowest; medians of updates."""
    update: float
    """Seconds, for the slowest worker."""
    messages: tuple[int, ...]
    """The bytes of what ranks send one after the other, all gradients in total."""
    exchange: float = 0.0
    """Seconds of the exchange of an update by itself, for the slowest worker."""
    link: Optional[Link] = None
    """That of several ranks."""


def run(case: ScalingCase, setup: ScalingSetup) -> ScalingSpeed:
    """Train on some workers, as many on each host.

    Raises:
        RuntimeError: a process failed; with its output.
    """
    exchange, workers, hosts = setup.exchange, setup.workers, setup.hosts
    addresses = [host for host in hosts for _ in range(workers // len(hosts))]
    worker = (sys.executable, "-m", "benchmarks.scaling_worker", "--kv-store", exchange.scheme)
    numbers = [case.model, str(case.batch), str(case.updates)]
    threads = str(case.threads)
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
    with TemporaryDirectory() as folder:
        command = [*_launcher(exchange, addresses, Path(folder)), *worker, *numbers]
        copies = workers if exchange == INDEPENDENT else 1
        if exchange == INDEPENDENT:
            command += [folder, str(copies)]
        outputs = run_all([(command, environment)] * copies)
    return read("\n".join(outputs), case.batch, workers)


def _launcher(exchange: ExchangeKind, addresses: Sequence[str], folder: Path) -> list[str]:
    """The launcher of workers on these hosts, as users call it."""
    workers, is_here = len(addresses), set(addresses) == {LOCAL}
    if exchange == INDEPENDENT:
        return []
    if exchange == ALLREDUCE:
        slots = ",".join(f"{host}:{addresses.count(host)}" for host in dict.fromkeys(addresses))
        horovodrun = str(Path(sys.executable).with_name("horovodrun"))
        return [horovodrun, "-np", str(workers), "-H", slots]
    servers = str(exchange.servers_per_worker * workers)
    launcher = [sys.executable, "-m", "parallel.launch", "-n", str(workers), "-s", servers]
    if not is_here:
        hosts = folder / "hosts"
        hosts.write_text("\n".join(addresses) + "\n")
        launcher += ["-H", str(hosts), "-i", os.environ["NIC"], "--launcher", "ssh"]
    return [*launcher, "--"]


def read(output: str, batch: int, workers: int) -> ScalingSpeed:
    """What the workers of a job have printed.

    Raises:
        RuntimeError: some have not, or were never at work together.
    """
    # Not by lines: a launcher may put two workers' on one.
    decode = json.JSONDecoder().raw_decode
    results = [decode(output, match.end())[0] for match in re.finditer(RESULT, output)]
    if len(results) != workers:
        raise RuntimeError(f"{len(results)} of {workers} workers have a result:\n{output}")
    probe = results[0]["probe"]
    update = max(map(statistics.median, _updates(results)))
    return ScalingSpeed(
        workers * batch / update,
        update,
        tuple(results[0]["messages"]),
        max(result["exchange"] for result in results),
        Link.of(Probe(*probe)) if probe else None,
    )


def _updates(results: Sequence[dict[str, Any]]) -> list[list[float]]:
    """The seconds of each worker's updates while all were at work.

    Processes that exchange nothing begin together, but do not end so.
    """
    clocks = [result["ends"] for result in results]
    if not any(result["exchange"] for result in results):
        first, last = max(clock[0] for clock in clocks), min(clock[-1] for clock in clocks)
        clocks = [[end for end in clock if first <= end <= last] for clock in clocks]
    seconds = [[after - before for before, after in zip(clock, clock[1:])] for clock in clocks]
    if not all(seconds):
        raise RuntimeError("the processes were hardly at work together; give more --updates")
    return seconds
