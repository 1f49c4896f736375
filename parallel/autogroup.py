"""Measure how fast each worker is, and write the files ``groups``, ``data_sharding``, ``servers``.

    python -m parallel.autogroup -n 4 -s 1 -- python classify.py --dataset mnist --data-dir mnist
    python -m parallel.launch -n 4 -s 1 --groups groups --data-sharding data_sharding \
        --server-hosts servers -- \
        python classify.py --kv-store dist_gsync --data-allocator 1 --dataset mnist ...

The command trains for one asynchronous epoch, in which no worker waits for another, so that each
shows its own speed; ``--num-examples`` in the command makes it shorter. The speeds are read from
the report of the first worker: ``metrics.jsonl`` has the images/s of all.

The published Grouping-SGD clusters the workers' speeds by one-dimensional k-means with a fixed k.
Here the Calinski-Harabasz index chooses k: the spread between the clusters over the spread within.
With few workers that index alone would take the noise of the measurement for structure, since
clusters of one worker have no spread; so clusters count only if their means are further apart than
measurements of equal machines are.
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

import numpy as np

from parallel.launch import ssh
from parallel.launch.cluster_files import Groups, format_groups, format_servers, format_shares
from parallel.launch.launcher import SERVE, addresses_of_workers, launch, worker_hosts
from parallel.launch.options import JobOptions, parse
from parallel.parameter_server.assignment import Share
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
# Machines whose speeds differ by less than this part of the faster one's count as equal.
_SAME = 0.1
_DIGITS = 6


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
    addresses, groups = worker_hosts(options).addresses, group(speeds)
    for number, workers in enumerate(groups):
        members = (
            f"worker {worker} on {addresses[worker]} {speeds[worker]:.0f} images/s"
            for worker in workers
        )
        print(f"group {number}: {', '.join(members)}")
    texts = (
        format_groups(groups, addresses),
        format_shares(shares(groups, speeds), addresses_of_workers(options)),
        format_servers(*zip(*servers(addresses, speeds, options.servers))),
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


def group(speeds: Sequence[float]) -> Groups:
    """Cluster workers of similar speed, which is their images/s.

    Returns the workers of each group, the fastest group first, and in it the lowest number; one
    group where all speeds are alike.
    """
    # Their import takes a second, for which --help need not wait.
    from sklearn.cluster import KMeans
    from sklearn.metrics import calinski_harabasz_score

    assert min(speeds) > 0, speeds
    values = np.array(speeds)[:, None]
    best, best_score = np.zeros(len(speeds), int), -np.inf
    # The index is not defined for clusters of one each; of two workers there is no other choice.
    most = min(len(np.unique(values)), max(2, len(speeds) - 1))
    for k in range(2, most + 1):
        labels = KMeans(k, n_init=10, random_state=0).fit(values).labels_
        clusters = [values[labels == label] for label in range(k)]
        means = np.sort([cluster.mean() for cluster in clusters])
        has_spread = any(np.ptp(cluster) for cluster in clusters)
        score = calinski_harabasz_score(values, labels) if has_spread else np.inf
        if np.all(means[:-1] < (1 - _SAME) * means[1:]) and score > best_score:
            best, best_score = labels, score
    groups = [np.flatnonzero(best == label) for label in np.unique(best)]
    groups.sort(key=lambda workers: -float(values[workers].mean()))
    return tuple(tuple(int(worker) for worker in workers) for workers in groups)


def shares(groups: Groups, speeds: Sequence[float]) -> tuple[Share, ...]:
    """Give each worker a share in proportion to the speed of the slowest member of its group.

    The members of a group then make equally many steps, each of which waits for the slowest; and
    all groups need the same time for their part of an epoch.
    """
    slowest = {worker: min(speeds[one] for one in group) for group in groups for worker in group}
    parts = np.array([slowest[worker] for worker in range(len(speeds))])
    ends = [round(float(end), _DIGITS) for end in np.cumsum(parts / parts.sum())]
    starts = [0.0, *ends[:-1]]
    return tuple(Share(start, end) for start, end in zip(starts, [*ends[:-1], 1.0]))


def servers(hosts: Sequence[str], speeds: Sequence[float], count: int) -> list[tuple[str, float]]:
    """Place servers on the machines of the workers, the fastest machine first.

    A machine is as fast as its workers together. Where there are more servers than machines, they
    go round, and those of a machine share its speed. Grouping-SGD orders its servers in the same
    way: the first one keeps the lowest layers, whose weights a worker needs first. Returns the
    address and the speed of each server.
    """
    machines: dict[str, float] = {}
    for host, speed in zip(hosts, speeds):
        machines[host] = machines.get(host, 0.0) + speed
    order = sorted(machines, key=lambda host: -machines[host])
    placed = [order[server % len(order)] for server in range(count)]
    return [(host, machines[host] / placed.count(host)) for host in placed]


if __name__ == "__main__":
    run_program(main)
