"""Runs of ``train.py``, started as its users start it, possibly several at once.

Nothing of the program is imported: its speed and its shares of time are read from the
``metrics.jsonl`` that every run writes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from benchmarks.worker import ROOT

_Result = TypeVar("_Result")
# The first update compiles kernels, the second still allocates arrays of new sizes.
WARM_UP_UPDATES = 2


def read_updates(metrics: Path) -> list[dict[str, Any]]:
    """The reports of a run about each update, without those that warm up."""
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return [record for record in records if record["update"] > WARM_UP_UPDATES]


def train(
    choices: Mapping[str, object],
    options: Sequence[str],
    *,
    ranks: int,
    threads: int,
    read: Callable[[Path], _Result],
    copies: int = 1,
) -> list[_Result]:
    """Train in ``copies`` independent runs at the same time.

    Args:
        choices: of config.sh; horovodrun would take some of the options for its own.
        options: of ``train.py``.
        ranks: of each run.
        threads: of each rank.
        read: what is made of a run's ``metrics.jsonl``.
        copies: how many runs there are.

    Raises:
        RuntimeError: a run failed; with what it printed.
    """
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    launcher = [horovodrun, "-np", str(ranks), "-H", f"localhost:{ranks}"] if ranks > 1 else []
    command = [*launcher, "bash", "config.sh", "--frequent", "1", "--keep", "0", *options]
    # With random labels and a usual rate the numbers would diverge, which changes their speed.
    all_choices = {"DATASET": "100w", "LR": "0.001", "OMP_NUM_THREADS": threads, **choices}
    variables = {**os.environ, **{name: str(value) for name, value in all_choices.items()}}
    with TemporaryDirectory() as folder:
        roots = [f"{folder}/{copy}" for copy in range(copies)]
        run_all([(command, {**variables, "MODELS_ROOT": root}) for root in roots])
        return [read(Path(root, "metrics.jsonl")) for root in roots]


def run_all(jobs: list[tuple[list[str], dict[str, str]]]) -> list[str]:
    """Run commands in their environments at the same time; returns what each printed.

    Raises:
        RuntimeError: one failed; with its output.
    """
    # Otherwise the commands would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with ExitStack() as stack:
        processes = []
        for command, variables in jobs:
            process = subprocess.Popen(command, cwd=ROOT, env=variables, **pipes)
            processes.append(stack.enter_context(process))
            # A launcher ends its ranks.
            stack.callback(process.terminate)
        outputs = [process.communicate()[0] for process in processes]
    for process, output in zip(processes, outputs):
        if process.returncode != 0:
            raise RuntimeError(f"a run ended with status {process.returncode}:\n{output}")
    return outputs
