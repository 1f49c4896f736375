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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Optional, TypeVar

_ROOT = Path(__file__).resolve().parents[1]
_Result = TypeVar("_Result")
# The first update compiles kernels, the second still allocates arrays of new sizes.
WARM_UP_UPDATES = 2
_GRACE_SECONDS = 20


class TrainingCase(NamedTuple):
    """What is trained.

    Attributes:
        network: the backbone.
        classes: of batches from memory; a record set knows its own number.
        ratio: of the centers that take part in an update.
        batch: images per rank.
        rec: folder of a record set, instead of batches from memory.
        options: further ones of ``train.py``.
    """

    network: str
    classes: int
    ratio: float
    batch: int
    rec: Optional[Path] = None
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Its name in a report."""
        data = f"{self.classes:,} classes" if self.rec is None else str(self.rec)
        return f"{self.network}, {data}, ratio {self.ratio:g}, batch {self.batch} per rank"


def read_updates(metrics: Path) -> list[dict[str, Any]]:
    """The reports of a run about each update, without those that warm up."""
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return [record for record in records if record["update"] > WARM_UP_UPDATES]


def train(
    case: TrainingCase,
    *,
    ranks: int,
    copies: int,
    threads: int,
    updates: int,
    read: Callable[[Path], _Result],
) -> list[_Result]:
    """Train for ``updates`` measured updates in ``copies`` independent runs.

    Args:
        case: what is trained.
        ranks: of each run.
        copies: how many runs there are at the same time.
        threads: of each rank.
        updates: how many are measured, after those that warm up.
        read: what is made of a run's ``metrics.jsonl``.

    Raises:
        RuntimeError: a run failed; with what it printed.
    """
    with TemporaryDirectory() as folder:
        roots = [Path(folder) / str(copy) for copy in range(copies)]
        command = _command(case, ranks, WARM_UP_UPDATES + updates)
        run_all([(command, _choices(case, root, threads)) for root in roots])
        return [read(root / "metrics.jsonl") for root in roots]


def _command(case: TrainingCase, ranks: int, updates: int) -> list[str]:
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    launcher = [horovodrun, "-np", str(ranks), "-H", f"localhost:{ranks}"]
    data = ["--num-classes", str(case.classes)] if case.rec is None else ["--rec", str(case.rec)]
    options = ["--max-update", str(updates), "--frequent", "1", "--keep", "0", *case.options]
    return [*(launcher if ranks > 1 else []), "bash", "config.sh", *data, *options]


def _choices(case: TrainingCase, models_root: Path, threads: int) -> dict[str, str]:
    """The environment of a run; horovodrun would take some of the options for its own."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "DATASET": "100w",
        "NETWORK": case.network,
        "SAMPLE_RATIO": str(case.ratio),
        "BATCH_SIZE": str(case.batch),
        # With random labels and a usual rate the numbers would diverge, which changes their speed.
        "LR": "0.001",
        "MODELS_ROOT": str(models_root),
    }


def run_all(jobs: list[tuple[list[str], dict[str, str]]]) -> list[str]:
    """Run commands in their environments at the same time; returns what each printed.

    Raises:
        RuntimeError: one failed; with its output.
    """
    # Otherwise the commands would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    with ExitStack() as stack:
        processes = [stack.enter_context(_started(*job)) for job in jobs]
        outputs = [process.communicate()[0] for process in processes]
        for process, output in zip(processes, outputs):
            if process.returncode != 0:
                raise RuntimeError(f"a run ended with status {process.returncode}:\n{output}")
    return outputs


@contextmanager
def _started(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the context; a launcher ends its ranks."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, cwd=_ROOT, env=environment, text=True, **pipes)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.communicate(timeout=_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
