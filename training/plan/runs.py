"""Short runs of the programs themselves, by which ``--calibrate`` measures.

The peak of a process and the time of an update grow in a straight line with the images of a pass,
from a base that has everything else in it (measured: docs/scaling.md), so two batches tell both
numbers. A program that has no short run is told to end after a few updates.
"""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

from runtime import environment, options
from runtime.errors import ConfigError
from training.plan import calibration
from training.plan.calibration import Calibration, CollectiveRates, NetworkCost
from training.plan.keys import Cell

if TYPE_CHECKING:
    # Either program loads its own.
    from training.config.faces import FaceConfig
    from training.config.images import ImageConfig

_ROOT = Path(__file__).resolve().parents[2]
IMAGES = 8, 32
"""Of a pass of the two runs."""
WARM_UP, UPDATES = 2, 7
"""Updates that do not count: the first compiles, the second still gets arrays; and all of a run."""
# Seconds between two looks at a run.
_POLL = 0.05
_PEAK = re.compile(r"peak memory of this rank: ([\d,.]+) MiB")


class RunCost(NamedTuple):
    """A short run: the peak of its largest rank in bytes, seconds of an update without the head."""

    peak: float
    seconds: float


# What is measured for a cell: kinds of entries and entries.
Entries = Iterable[tuple[str, object]]


def measure(world_size: Optional[int], entries: Callable[[Cell], Entries]) -> Calibration:
    """Measure on one rank and on those of a plan, and add it to the file; returns all of it.

    Raises:
        ConfigError: a run failed, or the file cannot be read or written.
    """
    found = calibration.read()
    # Refused now, not after a minute.
    calibration.write(found)
    for ranks in sorted({1, world_size or 1}):
        for kind, entry in entries(Cell.of(ranks)):
            found = found.added(kind, entry)
        calibration.write(found)
    return found


def run_cost(metrics: Path, images: int, logs: Sequence[Path], others: Sequence[str]) -> RunCost:
    """Read what a run wrote that reported every update.

    Args:
        metrics: its ``metrics.jsonl``.
        images: of an update, over all ranks.
        logs: of its ranks.
        others: the shares of an update that are not the network's.

    Raises:
        ConfigError: there are too few updates.
    """
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    seconds = [
        images / record["images_per_second"] * (1 - sum(record[name] for name in others))
        for record in records
        if record["update"] > WARM_UP
    ]
    if not seconds:
        raise ConfigError(
            f"--calibrate needs more than {WARM_UP} updates of {images} images, and the data set "
            f"has {len(records)} such updates; measure with a larger one"
        )
    peaks = [float(peak) for log in logs for peak in _peaks(log)]
    return RunCost(2**20 * max(peaks), statistics.median(seconds))


def _peaks(log: Path) -> list[str]:
    return [found.replace(",", "") for found in _PEAK.findall(log.read_text(encoding="utf-8"))]


def line_through(key: str, small: tuple[int, RunCost], large: tuple[int, RunCost]) -> NetworkCost:
    """The straight lines of bytes and seconds through two runs, by the images of their passes.

    On a machine that other programs use, the small run may take longer than it should: then all
    time is said to be the images'.
    """
    (few, one), (many, other) = small, large
    per_image = (other.peak - one.peak) / (many - few)
    seconds = (other.seconds - one.seconds) / (many - few)
    base = one.seconds - few * seconds
    if seconds <= 0 or base < 0:
        seconds, base = other.seconds / many, 0.0
    return NetworkCost(key, one.peak - few * per_image, max(per_image, 1.0), base, seconds)


def short_run(
    program: str, config: Union[FaceConfig, ImageConfig], cell: Cell, others: Sequence[str]
) -> RunCost:
    """Run a program for a few updates; see ``run_cost``. A longer run is stopped after them."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        chosen = options.replace(config, models_root=str(root / "run"))
        given = root / "config.json"
        given.write_text(json.dumps(chosen.values()), encoding="utf-8")
        metrics = root / "run/metrics.jsonl"
        start(cell, [program, "--config", str(given)], lambda: num_lines(metrics) >= UPDATES)
        logs = sorted((root / "run/logs").glob("rank-*.log"))
        return run_cost(metrics, chosen.images_per_rank * cell.ranks, logs, others)


def kernel_rates(cell: Cell, request: Optional[Mapping[str, object]]) -> Mapping[str, float]:
    """What ``training.plan.kernels`` measures on the ranks of a cell."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps(request), encoding="utf-8")
        start(cell, ["-m", "training.plan.kernels", str(asked), str(answer)])
        rates: Mapping[str, float] = json.loads(answer.read_text(encoding="utf-8"))
        return rates


def collective_entries(cell: Cell, rates: Mapping[str, float]) -> list[tuple[str, object]]:
    """The entry of the collectives, which one rank does not have."""
    if cell.ranks == 1:
        return []
    of_ranks = rates["collective_seconds"], rates["sent_bytes"]
    return [("collectives", CollectiveRates(str(cell), *of_ranks))]


def num_lines(file: Path) -> int:
    """The lines of a file that is being written, or will be."""
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def start(cell: Cell, words: Sequence[str], is_enough: Callable[[], bool] = lambda: False) -> None:
    """Run Python on each rank of a cell, until it ends or is told to, when it is enough.

    Raises:
        ConfigError: it failed; with the last line that it printed.
    """
    command = [sys.executable, *words]
    if cell.ranks > 1:
        launcher = str(Path(sys.executable).with_name("horovodrun"))
        ranks = str(cell.ranks)
        command = [launcher, "-np", ranks, "-H", f"localhost:{ranks}", *command]
    variables = {**environment.variables(), "OMP_NUM_THREADS": str(cell.threads)}
    variables["PYTHONPATH"] = str(_ROOT)
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
        is_stopped = _wait(process, is_enough)
        printed.seek(0)
        lines = printed.read().decode(errors="replace").strip().splitlines()
    if process.returncode and not is_stopped:
        last = (lines or ["it printed nothing"])[-1]
        raise ConfigError(
            f"--calibrate ran {' '.join(words[:2])} on {cell}, which ended with status "
            f"{process.returncode}: {last}"
        )


def _wait(process: subprocess.Popen[bytes], is_enough: Callable[[], bool]) -> bool:
    """Wait for the end of a process, which is stopped once it is enough; returns whether it was."""
    is_stopped = False
    try:
        while process.poll() is None:
            if not is_stopped and is_enough():
                # mpirun passes this on to its ranks, and kills them soon after other signals.
                process.send_signal(signal.SIGUSR1)
                is_stopped = True
            time.sleep(_POLL)
    finally:
        # After Ctrl-C.
        if process.poll() is None:
            process.terminate()
            process.wait()
    return is_stopped
