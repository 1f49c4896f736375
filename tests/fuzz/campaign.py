"""Feeds many inputs to all readers, in processes whose crash or hang is a finding.

    python -m tests.fuzz --inputs 100000 --seed 1
    python -m tests.fuzz --reproduce symbol:1000017

Input number N of a reader is always the same bytes; the number of a finding reproduces it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from runtime import processors
from tests.fuzz.readers import READERS
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
    crashes: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    executions: int = 0

    def __add__(self, other: Result) -> Result:
        return Result(*(one + more for one, more in zip(vars(self).values(), vars(other).values())))

    @property
    def is_clean(self) -> bool:
        """True if nothing was found."""
        return not (self.crashes or self.hangs or self.executions)


def run(shares: dict[str, int], inputs: int, seed: int, processes: int) -> dict[str, Result]:
    """Feed ``inputs`` inputs to all readers together, by their shares, and return what came out."""
    results = {name: Result() for name in shares}
    jobs: list[tuple[str, int, int]] = []
    for name, share in shares.items():
        first, count = seed * SPAN, -(-inputs * share // sum(shares.values()))
        for start in range(first, first + count, _INPUTS_PER_PROCESS):
            jobs.append((name, start, min(start + _INPUTS_PER_PROCESS, first + count)))
    with ThreadPoolExecutor(processes) as pool:
        for (name, *_), result in zip(jobs, pool.map(lambda job: run_range(*job), jobs)):
            results[name] += result
    return results


def run_range(name: str, first: int, stop: int) -> Result:
    """Feed the inputs ``first … stop - 1`` to a reader, in as many processes as it takes."""
    total = Result()
    while total.inputs < stop - first:
        total += _one_process(name, first + total.inputs, stop)
    return total


def _one_process(name: str, first: int, stop: int) -> Result:
    """Run a worker until it ends or is stuck."""
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
    crash = f"{name}:{last} (status {worker.returncode}) {said}"
    crashes = [crash] if worker.returncode and not is_stuck else []
    hangs = [f"{name}:{last}"] * is_stuck
    return Result(last + 1 - first, accepted, refused, crashes, hangs, executions)


def _is_stuck(worker: subprocess.Popen[bytes], status: Path) -> bool:
    """Wait for a worker; return True if it makes no progress.

    Looks are counted, not seconds: a machine that was stopped has not made the worker hang.
    """
    seen, looks = -1, 0
    while worker.poll() is None:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        current = STATUS.unpack(status.read_bytes())[0]
        looks = looks + 1 if current == seen else 0
        seen = current
        limit = _START_SECONDS if current < 0 else _INPUT_SECONDS
        if looks * _SECONDS_BETWEEN_LOOKS > limit:
            return True
    return False


def describe(results: dict[str, Result], seconds: float) -> str:
    """Return a table of the results, and each finding in a line."""
    total = sum(results.values(), Result())
    lines = [f"{'reader':<12}{'inputs':>9}{'accepted':>10}{'refused':>9}  crashes hangs executions"]
    for name, one in {**results, "all": total}.items():
        counts = f"{one.inputs:>9,}{one.accepted:>10,}{one.refused:>9,}"
        found = f"{len(one.crashes):>7}{len(one.hangs):>6}{one.executions:>11}"
        lines.append(f"{name:<12}{counts}  {found}")
    lines.append(f"{seconds:.0f} s")
    lines += [f"crash {' | '.join(crash.splitlines())}" for crash in total.crashes]
    return "\n".join([*lines, *(f"hang {hang}" for hang in total.hangs)])


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run a campaign, or one input; return 1 if something was found."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.fuzz")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(READERS), metavar="READER,READER")
    parser.add_argument("--reproduce", metavar="READER:NUMBER")
    options = parser.parse_args(argv)
    began = time.monotonic()
    if options.reproduce:
        name, _, number = options.reproduce.partition(":")
        results = {name: run_range(name, int(number), int(number) + 1)}
    else:
        shares = {name: READERS[name].share for name in options.only.split(",")}
        results = run(shares, options.inputs, options.seed, processors.available())
    print(describe(results, time.monotonic() - began))
    return 0 if all(result.is_clean for result in results.values()) else 1
