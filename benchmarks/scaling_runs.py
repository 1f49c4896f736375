"""Jobs of ``benchmarks.scaling_worker`` on this host: under horovodrun, or with parameter servers.

Everything listens on 127.0.0.1: MXNet's parameter servers ask nobody who he is.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.training_runs import started

_HOST = "127.0.0.1"
# The import of MXNet is the whole life of a scheduler or a server.
_SERVE = [sys.executable, "-c", "import runtime.mxnet"]


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
    with TemporaryDirectory() as folder, ExitStack() as stack:
        kind = "dist_sync" if exchange.servers_per_worker else "allreduce"
        command = [
            *(sys.executable, "-m", "benchmarks.scaling_worker", kind, task.model),
            *(str(task.batch), str(task.updates), folder),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": str(task.threads)}
        if exchange.servers_per_worker:
            jobs = _with_servers(command, workers, exchange.servers_per_worker * workers)
        else:
            jobs = [(_launched(command, workers), {})]
        processes = [
            stack.enter_context(started(words, {**environment, **role})) for words, role in jobs
        ]
        for process in processes:
            _finish(process)
        return _read(Path(folder), task.batch)


def _launched(command: list[str], ranks: int) -> list[str]:
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    launcher = [horovodrun, "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}"]
    return [*(launcher if ranks > 1 else []), *command]


def _with_servers(
    command: list[str], workers: int, servers: int
) -> list[tuple[list[str], dict[str, str]]]:
    """The workers, the servers and the scheduler, with what tells each its role."""
    common = {
        "DMLC_PS_ROOT_URI": _HOST,
        "DMLC_PS_ROOT_PORT": str(_free_port()),
        "DMLC_NODE_HOST": _HOST,
        "DMLC_INTERFACE": "lo",
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
    }
    return [
        *[(command, {**common, "DMLC_ROLE": "worker"})] * workers,
        *[(_SERVE, {**common, "DMLC_ROLE": "server"})] * servers,
        (_SERVE, {**common, "DMLC_ROLE": "scheduler"}),
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"a process ended with status {process.returncode}:\n{output}")


def _read(folder: Path, batch: int) -> Speed:
    results = [json.loads(path.read_text()) for path in folder.iterdir()]
    slowest = max(statistics.median(result["seconds"]) for result in results)
    return Speed(len(results) * batch / slowest, results[0]["parameter_bytes"])
