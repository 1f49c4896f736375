"""Jobs of ``benchmarks.scaling_worker`` on this host, under horovodrun or ``parallel.launch``."""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.training_runs import started
from training.config.exchange import HOROVOD


class Exchange(NamedTuple):
    """How gradients travel."""

    servers_per_worker: int
    """Parameter servers for each worker, 0 for Allreduce."""

    def __str__(self) -> str:
        """Name it."""
        if not self.servers_per_worker:
            return "Allreduce"
        return f"parameter server {self.servers_per_worker}:1"


ALLREDUCE = Exchange(0)


class Task(NamedTuple):
    """What every worker does."""

    model: str
    batch: int
    updates: int
    threads: int


class Speed(NamedTuple):
    """Of one job."""

    images_per_second: float
    """Over all workers, at the pace of the slowest; medians of updates."""
    parameter_bytes: int


def run(task: Task, exchange: Exchange, workers: int) -> Speed:
    """Train on some workers.

    Raises:
        RuntimeError: a process failed; with what it printed.
    """
    scheme = "dist_sync" if exchange.servers_per_worker else HOROVOD
    with TemporaryDirectory() as folder:
        command = [
            *_launcher(exchange, workers),
            *(sys.executable, "-m", "benchmarks.scaling_worker", "--kv-store", scheme, task.model),
            *(str(task.batch), str(task.updates), folder),
        ]
        threads = {"OMP_NUM_THREADS": str(task.threads)}
        with started(command, {**os.environ, **threads}) as process:
            output, _ = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"a job ended with status {process.returncode}:\n{output}")
        return _read(Path(folder), task.batch)


def _launcher(exchange: Exchange, workers: int) -> list[str]:
    """What starts the workers, all on 127.0.0.1; one that exchanges nothing needs nobody."""
    if exchange.servers_per_worker:
        servers = str(exchange.servers_per_worker * workers)
        return [sys.executable, "-m", "parallel.launch", "-n", str(workers), "-s", servers, "--"]
    if workers == 1:
        return []
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    return [horovodrun, "--gloo", "-np", str(workers), "-H", f"localhost:{workers}"]


def _read(folder: Path, batch: int) -> Speed:
    results = [json.loads(path.read_text()) for path in folder.iterdir()]
    slowest = max(statistics.median(result["seconds"]) for result in results)
    return Speed(len(results) * batch / slowest, results[0]["parameter_bytes"])
