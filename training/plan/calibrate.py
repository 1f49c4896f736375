"""``--dry-run --calibrate``: measures on this host what a plan is made of, before it is made.

The memory and the time of a backbone are those of ``train.py`` itself, run twice for a few updates
on batches from memory: a computed graph does not know what oneDNN, the memory allocator and Horovod
take beside it. The peak of a process grows in a straight line with the images of a pass, from a
base that has everything else in it (measured: docs/scaling.md), so two batches, of 8 and of 32
images, tell both numbers, and a plan for 64 images needs no run on 64. The head is not in them: its
arrays are exact, and its time follows from the rates that ``training.plan.kernels`` measures.
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
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, Optional, Union

from partial_fc.shard import Shard
from runtime import environment, options
from runtime.errors import ConfigError
from training.config.faces import FaceConfig
from training.config.images import ImageConfig
from training.plan import calibration, keys
from training.plan.calibration import (
    Calibration,
    CollectiveRates,
    HeadRates,
    InputRates,
    NetworkCost,
)
from training.plan.keys import Cell
from training.plan.memory import head_memory

_ROOT = Path(__file__).resolve().parents[2]
# Images of a pass. With --recompute the line bends: of the arrays that each part gets and gives
# back, the allocator keeps small ones and returns large ones, so larger batches are measured.
IMAGES, _IMAGES_IN_PARTS = (8, 32), (16, 64)
# So few that the head hardly matters.
_CLASSES = 1000
# The first compiles, the second still gets arrays.
WARM_UP, UPDATES = 2, 7
# Seconds between two looks at a run.
_POLL = 0.05
_PEAK = re.compile(r"peak memory of this rank: ([\d,.]+) MiB")
# What a run of a few updates is not to do, and what a plan does not depend on.
_PLAIN = {
    **{"rec": (".",), "debug": True, "val_targets": (), "best": None, "keep": 0},
    **{"resume": "never", "verbose": 10**9, "save_interval": 0, "frequent": 1, "epochs": None},
    **{"warmup": 0, "lr": 1e-4, "center_lr": None, "pretrained": None, "pretrained_centers": None},
    **{"teacher": None, "sample_ratio": 1.0, "accumulate": 1, "num_classes": _CLASSES},
    **{"dry_run": False, "calibrate": False, "json": False, "gpu": False, "world_size": None},
    **{"memory": None, "dataset": None, "num_images": None, "filter_threshold": 1.0},
    **{"max_update": UPDATES, "lr_schedule": "cosine", "lr_steps": (), "lr_factor": None},
}


class RunCost(NamedTuple):
    """A short run: the peak of its largest rank in bytes, seconds of an update without the head."""

    peak: float
    seconds: float


def calibrate(config: FaceConfig) -> Calibration:
    """Measure what the plan of this configuration needs, add it to the file and return all of it.

    Raises:
        ConfigError: a run failed, or the file cannot be read or written.
    """
    return measure(config.dry_run.world_size, lambda cell: _entries(config, cell))


# What is measured for a cell: kinds of entries and entries.
_Entries = Iterable[tuple[str, object]]


def measure(world_size: Optional[int], entries: Callable[[Cell], _Entries]) -> Calibration:
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


def _entries(config: FaceConfig, cell: Cell) -> _Entries:
    few, many = _IMAGES_IN_PARTS if config.backbone.recompute else IMAGES
    small, large = _run(config, cell, few), _run(config, cell, many)
    key = keys.network_key(config, cell)
    yield "networks", line_through(key, (few, small), (many, large))
    yield from _rates(config, cell)


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


def _run(config: FaceConfig, cell: Cell, images: int) -> RunCost:
    """Train for a few updates; without the bytes of the head, which a plan counts by itself."""
    chosen = options.replace(config, **{**_PLAIN, "batch_size": images})
    head = head_memory(chosen, Shard(0, cell.ranks, _CLASSES)).total
    cost = short_run("train.py", chosen, cell, ("head", "communication", "waiting"))
    return cost._replace(peak=cost.peak - head)


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


def _rates(config: FaceConfig, cell: Cell) -> list[tuple[str, object]]:
    request = {
        "embedding_size": config.backbone.embedding_size,
        "head_dtype": config.head.head_dtype,
        "optimizer": config.optimizer.optimizer,
        "record_file": _record_file(config),
    }
    rates = kernel_rates(cell, request)
    head = {name: rates[name] for name in ("operations", "gathered", "updated", "logits", "drawn")}
    entries: list[tuple[str, object]] = [
        (
            "heads",
            HeadRates(keys.head_key(config, cell), **head, base_seconds=rates["head_seconds"]),
        ),
        (
            "inputs",
            InputRates(keys.input_key(config), rates["read_bytes"], rates["decoded"]),
        ),
    ]
    return [*entries, *collective_entries(cell, rates)]


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


def _record_file(config: FaceConfig) -> Optional[str]:
    if not config.data.rec:
        return None
    given = Path(config.data.rec[0])
    file = given if given.suffix == ".rec" else given / "train.rec"
    return str(file.resolve()) if file.is_file() else None


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


def describe(found: Calibration) -> str:
    """The file, and how much is in it."""
    counts = {name: len(entries) for name, entries in asdict(found).items() if name != "processor"}
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"measured: {listed} in {calibration.path()}"
