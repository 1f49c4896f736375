"""Measure how fast each worker is, and write the files ``groups``, ``data_sharding``, ``servers``.

    python -m parallel.autogroup -n 4 -s 1 -- python classify.py --dataset mnist --data-dir mnist
    python -m parallel.launch -n 4 -s 1 --groups groups --data-sharding data_sharding \
        --server-hosts servers -- \
        python classify.py --kv-store dist_gsync --data-allocator 1 --dataset mnist ...

The command trains for one asynchronous epoch, in which no worker waits for another, so that each
shows its own speed; ``--num-examples`` in the command makes it shorter. The speeds are read from
the report of the first worker: ``metrics.jsonl`` has the images/s of all.
"""

from __future__ import annotations

import json
import statistics
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Optional

from parallel import grouping
from parallel.launch import ssh
from parallel.launch.cluster_files import format_groups, format_servers, format_shares
from parallel.launch.launcher import SERVE, addresses_of_workers, launch, worker_hosts
from parallel.launch.options import JobOptions, parse
from runtime.errors import DataError, run_program
from runtime.files import StagedFiles, as_data_error

_RATE = "images_per_second/worker_{}"
# The files, where --groups, --data-sharding and --server-hosts name no others.
_WRITTEN = ("groups", "data_sharding", "servers")
# Options that the measuring run is given, and those that it is not given.
_ADDED = (
    *("--kv-store", "dist_async", "--epochs", "1", "--resume", "never"),
    *("--keep", "0", "--save-frequency", "0", "--frequent", "5"),
)
_REMOVED = ("--staleness", "--data-allocator", "--rebalance")
# Compilation and the first reads of the data are not the speed of a machine.
_WARM_UP_SHARE = 0.25
_FEWEST_REPORTS = 4


def main(argv: Optional[Sequence[str]] = None, serve: Sequence[str] = SERVE) -> int:
    """Run the command line, by default this process's; returns the status of the measuring run.

    Raises:
        DataError: the run was too short to measure, or the files cannot be written.
    """
    purpose = "Measure the workers' speeds; write groups, data_sharding and servers."
    given = parse("parallel.autogroup", purpose, argv)
    named = (given.groups, given.data_sharding, given.server_hosts)
    files = [path or Path(name) for path, name in zip(named, _WRITTEN)]
    options = replace(given, groups=None, data_sharding=None, server_hosts=None)
    status, speeds = _measure(options, serve)
    if status:
        return status
    addresses, groups = worker_hosts(options).addresses, grouping.group(speeds)
    for number, group in enumerate(groups):
        members = (
            f"worker {worker} on {addresses[worker]} {speeds[worker]:.0f} images/s"
            for worker in group
        )
        print(f"group {number}: {', '.join(members)}")
    texts = (
        format_groups(groups, addresses),
        format_shares(grouping.shares(groups, speeds), addresses_of_workers(options)),
        format_servers(*zip(*grouping.servers(addresses, speeds, options.servers))),
    )
    names = ", ".join(map(str, files))
    with as_data_error(f"{names} cannot be written"), StagedFiles() as staged:
        for path, text in zip(files, texts):
            staged.open(path).write(text.encode())
    print(f"written: {names}")
    return 0


def _measure(options: JobOptions, serve: Sequence[str]) -> tuple[int, list[float]]:
    """Run the job; return its status and, unless it has failed, the images/s of the workers."""
    hosts = dict.fromkeys(worker_hosts(options).logins) if options.launcher == "ssh" else ()
    with TemporaryDirectory(prefix=".autogroup-", dir=Path.cwd()) as folder:
        command = measuring_command(options.command, Path(folder))
        status = launch(replace(options, command=command), serve)
        metrics = Path(folder, "metrics.jsonl")
        try:
            if hosts and not status and not metrics.exists():
                # Worker 0 has written on its own host.
                metrics.write_bytes(*_on_hosts([*hosts][:1], "cat", metrics))
            return status, [] if status else read_speeds(metrics, options.workers)
        finally:
            # Each host has the logs of its workers.
            _on_hosts(hosts, "rm", "-rf", folder)


def _on_hosts(hosts: Iterable[str], *words: object) -> list[bytes]:
    """Run a command on hosts, in a limited time; returns its outputs."""
    commands = {host: ssh.command(host, map(str, words)) for host in hosts}
    given = dict.fromkeys(commands, ssh.first_input({}))
    return [one.output for one in ssh.answers(commands, given, ssh.ANSWER_SECONDS).values()]


def measuring_command(command: Sequence[str], models_root: Path) -> list[str]:
    """The command of a short asynchronous run that leaves no files but its numbers."""
    removed = ArgumentParser(add_help=False, allow_abbrev=False)
    for option in _REMOVED:
        removed.add_argument(option)
    _, kept = removed.parse_known_args(command)
    return [*kept, *_ADDED, "--models-root", str(models_root)]


def read_speeds(metrics: Path, workers: int) -> list[float]:
    """Read the images/s of each worker: the median of the reports in which all were training.

    Raises:
        DataError: there are too few reports.
    """
    names = [_RATE.format(worker) for worker in range(workers)]
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    records = map(json.loads, lines)
    rates = ([record.get(name) for name in names] for record in records)
    reports = [report for report in rates if all(report)]
    if len(reports) < _FEWEST_REPORTS:
        raise DataError(
            f"the run that measures made {len(reports)} reports of all workers, but "
            f"{_FEWEST_REPORTS} are needed; let it train on more images or in smaller batches "
            "(--num-examples, --batch-size)"
        )
    settled = reports[int(_WARM_UP_SHARE * len(reports)) :]
    return [statistics.median(column) for column in zip(*settled)]


if __name__ == "__main__":
    run_program(main)
