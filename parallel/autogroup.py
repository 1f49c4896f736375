"""Measure how fast each worker is, and write the files ``groups`` and ``data_sharding``.

    python -m parallel.autogroup -n 4 -s 1 -- python classify.py --dataset mnist --data-dir mnist
    python -m parallel.launch -n 4 -s 1 --groups groups --data-sharding data_sharding -- \
        python classify.py --kv-store dist_gsync --data-allocator 1 --dataset mnist ...

The command trains for one asynchronous epoch, in which nobody waits for anybody, so that each
worker shows its own speed; ``--num-examples`` in the command makes it shorter. The speeds are read
from what the first worker reports: ``metrics.jsonl`` has the images/s of all.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Optional

from parallel import grouping
from parallel.launch import __main__ as launch
from parallel.launch import data_sharding, groups
from parallel.launch.network_interface import Network
from parallel.parameter_server.buckets import LARGEST
from runtime.command_line import Parser
from runtime.errors import DataError, run_program
from runtime.files import StagedFiles

_RATE = "images_per_second/worker_{}"
# What the run that measures is told, and what it is not told.
_MEASURING = (
    *("--kv-store", "dist_async", "--epochs", "1", "--resume", "never"),
    *("--keep", "0", "--save-frequency", "0", "--frequent", "5"),
)
_LEFT_OUT = ("--staleness", "--data-allocator", "--rebalance")
# Compilation and the first epoch's reading are not the speed of a machine.
_WARM_UP_SHARE = 0.25
_FEWEST_REPORTS = 4


def main(argv: Optional[Sequence[str]] = None, serve: Sequence[str] = launch.SERVE) -> int:
    """Measure and write; returns the status of the run that measures.

    Args:
        argv: the command line, this process's by default.
        serve: what servers and the scheduler run.

    Raises:
        DataError: the run was too short to measure, or the files cannot be written.
    """
    options = _parse(argv)
    addresses = launch.read_hosts(options, Network.find(options.interface))
    # In this folder, which all hosts see.
    with TemporaryDirectory(prefix=".autogroup-", dir=Path.cwd()) as folder:
        status = launch.launch(_measuring(options, Path(folder)), serve)
        if status:
            return status
        measured = read_speeds(Path(folder, "metrics.jsonl"), options.workers)
    found = grouping.group(measured)
    _tell(found, addresses, measured)
    shares = grouping.shares(found, measured)
    try:
        with StagedFiles() as files:
            files.open(options.groups).write(groups.text(found, addresses).encode())
            files.open(options.data_sharding).write(data_sharding.text(shares).encode())
    except OSError as error:
        raise DataError(
            f"{options.groups} and {options.data_sharding} cannot be written: {error.strerror}"
        ) from None
    print(f"written: {options.groups}, {options.data_sharding}")
    return 0


def measuring_command(command: Sequence[str], models_root: Path) -> list[str]:
    """The command of one short asynchronous run that leaves nothing behind but its numbers."""
    kept: list[str] = []
    words = iter(command)
    for word in words:
        if word in _LEFT_OUT:
            next(words, None)
        elif word.partition("=")[0] not in _LEFT_OUT:
            kept.append(word)
    return [*kept, *_MEASURING, "--models-root", str(models_root)]


def read_speeds(metrics: Path, workers: int) -> list[float]:
    """Read the images/s of each worker: the median of what was reported while all were at work.

    Args:
        metrics: ``metrics.jsonl`` of a run with ``dist_async``.
        workers: how many.

    Raises:
        DataError: there are too few reports.
    """
    names = [_RATE.format(worker) for worker in range(workers)]
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    records = [json.loads(line) for line in lines]
    reports = [
        [record[name] for name in names]
        for record in records
        if all(record.get(name) for name in names)
    ]
    if len(reports) < _FEWEST_REPORTS:
        raise DataError(
            f"the run that measures made {len(reports)} reports of all workers, but "
            f"{_FEWEST_REPORTS} are needed; let it train on more images or in smaller batches "
            "(--num-examples, --batch-size)"
        )
    settled = reports[int(_WARM_UP_SHARE * len(reports)) :]
    return [statistics.median(column) for column in zip(*settled)]


def _measuring(options: argparse.Namespace, folder: Path) -> argparse.Namespace:
    """What the launcher is told."""
    told = {
        "command": measuring_command(options.command, folder),
        "groups": None,
        "data_sharding": None,
        "tolerate_workers": False,
        "bucket_elements": LARGEST,
        "trace": None,
    }
    return argparse.Namespace(**{**vars(options), **told})


def _tell(found: groups.Groups, addresses: Sequence[str], measured: Sequence[float]) -> None:
    for number, group in enumerate(found):
        members = ", ".join(
            f"worker {worker} on {addresses[worker]} {measured[worker]:.0f} images/s"
            for worker in group
        )
        print(f"group {number}: {members}")


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m parallel.autogroup",
        description="Measure the workers' speeds; write the files groups and data_sharding.",
    )
    launch.add_options(parser)
    for name in ("groups", "data_sharding"):
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=Path,
            default=Path(name),
            metavar="FILE",
            help="is written (%(default)s)",
        )
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_program(main)
