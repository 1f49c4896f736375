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


class ExchangeKind(NamedTuple):
    """How workers exchange gradients."""

    servers_per_worker: int
    """Parameter servers for each worker, 0 for Allreduce."""

    def __str__(self) -> str:
        """Its name in the report."""
        if not self.servers_per_worker:
            return "Allreduce"
        return f"parameter server {self.servers_per_worker}:1"


ALLREDUCE = ExchangeKind(0)


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
    parameter_bytes: int


def run(case: ScalingCase, exchange: ExchangeKind, workers: int) -> ScalingSpeed:
    """Train on some workers.

    Raises:
        RuntimeError: a process failed; with its output.
    """
    scheme = "dist_sync" if exchange.servers_per_worker else HOROVOD
    with TemporaryDirectory() as folder:
        command = [
            *_launcher(exchange, workers),
            *(sys.executable, "-m", "benchmarks.scaling_worker", "--kv-store", scheme, case.model),
            *(str(case.batch), str(case.updates), folder),
        ]
        threads = {"OMP_NUM_THREADS": str(case.threads)}
        with started(command, {**os.environ, **threads}) as process:
            output, _ = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"a job ended with status {process.returncode}:\n{output}")
        return _read(Path(folder), case.batch)


def _launcher(exchange: ExchangeKind, workers: int) -> list[str]:
    """The launcher of the workers, all on this host; a single worker without servers has none."""
    if exchange.servers_per_worker:
        servers = str(exchange.servers_per_worker * workers)
        return [sys.executable, "-m", "parallel.launch", "-n", str(workers), "-s", servers, "--"]
    if workers == 1:
        return []
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    return [horovodrun, "--gloo", "-np", str(workers), "-H", f"localhost:{workers}"]


def _read(folder: Path, batch: int) -> ScalingSpeed:
    results = [json.loads(path.read_text()) for path in folder.iterdir()]
    slowest = max(statistics.median(result["seconds"]) for result in results)
    return ScalingSpeed(len(results) * batch / slowest, results[0]["parameter_bytes"])
