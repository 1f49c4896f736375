"""Feeds many inputs to all readers, in processes whose crash or hang is a finding.

    python -m tests.fuzz --inputs 100000 --seed 1
    python -m tests.fuzz --reproduce symbol:1000017

Input number N of a reader is always the same bytes; the number of a finding reproduces it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.worker import STATUS

ROOT = Path(__file__).resolve().parents[2]
_SECONDS_BETWEEN_LOOKS = 0.05
# The import of MXNet on a busy machine; and what no input may take, in seconds of waiting.
_START_SECONDS, _INPUT_SECONDS = 240.0, 10.0
_INPUTS_PER_PROCESS = 5000
_LAST_LINES = 400
# Seeds of campaigns lie apart: input numbers of one seed are not those of another.
SPAN = 1_000_000


@dataclass
class Result:
    """What one reader did with its inputs."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    executions: int = 0
    crashes: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)

    def add(self, other: Result) -> None:
        """Count another result in."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def is_clean(self) -> bool:
        """True if nothing was found."""
        return not (self.crashes or self.hangs or self.executions)


def run(shares: dict[str, int], inputs: int, seed: int, processes: int) -> dict[str, Result]:
    """Feed ``inputs`` inputs to the readers by their shares, and return what came out.

    Args:
        shares: the readers, and their relative numbers of inputs.
        inputs: for all of them together.
        seed: of the inputs.
        processes: how many run at once.
    """
    results = {name: Result() for name in shares}
    jobs: list[tuple[str, int, int]] = []
    for name, share in shares.items():
        first, count = seed * SPAN, -(-inputs * share // sum(shares.values()))
        for start in range(first, first + count, _INPUTS_PER_PROCESS):
            jobs.append((name, start, min(start + _INPUTS_PER_PROCESS, first + count)))

    def run(job: tuple[str, int, int]) -> tuple[str, Result]:
        return job[0], run_range(*job)

    with ThreadPoolExecutor(processes) as pool:
        done = pool.map(run, jobs)
        for name, result in done:
            results[name].add(result)
    return results


def run_range(name: str, first: int, stop: int) -> Result:
    """Feed the inputs ``first … stop - 1`` to a reader, in as many processes as it takes."""
    total = Result()
    while first < stop:
        result, last = _one_process(name, first, stop)
        result.inputs = last + 1 - first
        total.add(result)
        first = last + 1
    return total


def _one_process(name: str, first: int, stop: int) -> tuple[Result, int]:
    """Run a worker until it ends or is stuck; return what it did and its last input."""
    with tempfile.TemporaryDirectory() as folder:
        status, errors = Path(folder) / "status", Path(folder) / "errors"
        status.write_bytes(STATUS.pack(-1, 0, 0, 0))
        words = ["tests.fuzz.worker", name, str(first), str(stop), str(status)]
        # One thread: an input shall not be slow because others run.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": folder}
        with errors.open("wb") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", *words], cwd=ROOT, env=environment,
                stdout=output, stderr=output,
            )  # fmt: skip
            try:
                is_stuck = _is_stuck(worker, status)
            finally:
                worker.kill()
                worker.wait()
        last, accepted, refused, executions = STATUS.unpack(status.read_bytes())
        said = errors.read_text(errors="replace")[-_LAST_LINES:]
    assert last >= first, f"the worker of {name} did not start: {said}"
    result = Result(accepted=accepted, refused=refused, executions=executions)
    if is_stuck:
        result.hangs.append(f"{name}:{last}")
    elif worker.returncode:
        result.crashes.append(f"{name}:{last} (status {worker.returncode}) {said}")
    return result, last


def _is_stuck(worker: subprocess.Popen[bytes], status: Path) -> bool:
    """Wait for a worker; return True if it makes no progress.

    Looks are counted, not seconds: a machine that was stopped has not made the worker hang.
    """
    seen, looks = -1, 0
    while worker.poll() is None:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        (current, *_) = STATUS.unpack(status.read_bytes())
        looks = looks + 1 if current == seen else 0
        seen = current
        limit = _START_SECONDS if current < 0 else _INPUT_SECONDS
        if looks * _SECONDS_BETWEEN_LOOKS > limit:
            return True
    return False


def describe(results: dict[str, Result], seconds: float) -> str:
    """Return a table of the results, and each finding in a line."""
    total = Result()
    lines = [f"{'reader':<10}{'inputs':>9}{'accepted':>10}{'refused':>9}  crashes hangs executions"]
    for name, result in results.items():
        lines.append(_row(name, result))
        total.add(result)
    lines += [_row("all", total), f"{seconds:.0f} s"]
    lines += [f"crash {' | '.join(finding.split(chr(10)))}" for finding in total.crashes]
    lines += [f"hang {finding}" for finding in total.hangs]
    return "\n".join(lines)


def _row(name: str, result: Result) -> str:
    return (
        f"{name:<10}{result.inputs:>9,}{result.accepted:>10,}{result.refused:>9,}  "
        f"{len(result.crashes):>7}{len(result.hangs):>6}{result.executions:>11}"
    )
