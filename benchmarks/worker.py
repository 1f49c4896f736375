"""A process for each variant of a benchmark, so that variants can be measured in turns.

MXNet, Numba and PyTorch read the number of threads while they are imported, so one process cannot
measure one thread and two; and the memory of a variant can be measured only in a process of its
own. A worker builds its subject once, keeps its arrays, and takes a step on each request.

    python -m benchmarks.worker MODULE:CLASS

is the other end of the pipe: one JSON object per line, in both directions.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Optional, Protocol

ROOT = Path(__file__).resolve().parents[1]
_LIBRARIES = ("OMP", "NUMBA", "OPENBLAS", "MKL")


class Subject(Protocol):
    """What a worker measures; created with the arguments that the parent sends."""

    def step(self) -> None:
        """Do the work once and wait until it is done."""


class Worker:
    """The parent's end of the pipe to a process with a subject; a context manager."""

    def __init__(
        self, target: str, threads: int, python: str, variables: Mapping[str, str]
    ) -> None:
        """Start the process.

        Args:
            target: "module:Class" of the ``Subject``.
            threads: how many threads the libraries of the process may use.
            python: the Python that has what the subject imports.
            variables: of the process's environment, above those of this one.
        """
        self._target = target
        limits = {f"{name}_NUM_THREADS": str(threads) for name in _LIBRARIES}
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", target],
            cwd=ROOT,
            env={**os.environ, **limits, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def create(self, arguments: Mapping[str, Any]) -> None:
        """Build the subject in place of the former one; its memory is measured from here on."""
        self._ask("create", arguments)

    def step(self) -> float:
        """Take one step; returns its seconds."""
        return float(self._ask("step"))

    def peak_memory(self) -> Optional[int]:
        """The most bytes that steps since ``create`` took above those after it; None if unknown."""
        peak = self._ask("peak_memory")
        return None if peak is None else int(peak)

    def _ask(self, command: str, arguments: Optional[Mapping[str, Any]] = None) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([command, arguments or {}]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            status = self._process.wait()
            raise RuntimeError(f"the worker of {self._target} ended with status {status}")
        return json.loads(answer)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        # A worker leaves nothing behind that it would have to clean up.
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Serve the parent until it closes the pipe."""
    module, _, name = sys.argv[1].partition(":")
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # Output of libraries must not mix with the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    factory: Callable[..., Subject] = getattr(importlib.import_module(module), name)
    subject: Any = None
    at_rest: Optional[int] = None
    for line in sys.stdin:
        command, arguments = json.loads(line)
        answer: Optional[float] = None
        if command == "create":
            subject = None
            gc.collect()
            subject = factory(**arguments)
            gc.collect()
            at_rest = _reset_peak()
        elif command == "step":
            start = time.perf_counter()
            subject.step()
            answer = time.perf_counter() - start
        elif at_rest is not None:
            answer = _memory("VmHWM") - at_rest
        print(json.dumps(answer), file=answers, flush=True)


def _reset_peak() -> Optional[int]:
    """Reset the kernel's record of the largest resident size; returns the size, if that works."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _memory("VmRSS")
    except OSError:
        return None


def _memory(field: str) -> int:
    """Resident bytes of this process: now (VmRSS) or at most (VmHWM)."""
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert match is not None, field
    return 1024 * int(match.group(1))


if __name__ == "__main__":
    main()
