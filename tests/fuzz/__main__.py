"""Feeds many inputs to all readers, in processes whose crash or hang is a finding.

    python -m tests.fuzz --inputs 100000 --seed 1
    python -m tests.fuzz --reproduce symbol:1000017

Input number N of a reader is always the same bytes; the number of a finding reproduces it.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from runtime import processors
from runtime.errors import UserError
from tests.fuzz.mutate import make_input
from tests.fuzz.readers import READERS
from tests.support.launch import ROOT

# The import of MXNet on a busy machine; and what no input may take, in seconds of waiting.
_START_SECONDS, _INPUT_SECONDS = 240.0, 10.0
_INPUTS_PER_PROCESS = 5000
_LAST_LINES = 400
# Seeds of campaigns lie apart: input numbers of one seed are not those of another.
SPAN = 1_000_000
_STATUS = struct.Struct("<qqqq")
"""The input under way, and how many were accepted, refused, and executed something."""

_INPUT_MEMORY = 1 << 30
_EXECUTIONS = (
    "os.system os.exec os.fork os.forkpty os.posix_spawn os.spawn os.kill subprocess.Popen "
    "socket.connect socket.bind ctypes.dlopen pickle.find_class"
).split()
# The modules of the processes that try networks out.
_CHILDREN = {"backbones.trial", "runtime.untrusted.onnx_model"}


@dataclass
class Result:
    """What one reader did with its inputs."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    executions: int = 0
    findings: list[str] = field(default_factory=list)
    """Crashes, and inputs that take too long."""

    def __add__(self, other: Result) -> Result:
        return Result(*(one + more for one, more in zip(vars(self).values(), vars(other).values())))

    @property
    def is_clean(self) -> bool:
        """True if nothing was found."""
        return not (self.findings or self.executions)


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
    status: tuple[int, ...] = (-1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/errors", "w+b") as errors:
        words = [sys.executable, "-m", "tests.fuzz", "--work", name, str(first), str(stop)]
        # One thread: an input must not be slow because others run.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": folder}
        worker = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, bufsize=0
        )
        try:
            while not (is_stuck := _is_silent(worker, status[0])):
                if not (answer := worker.stdout.read(_STATUS.size)):
                    worker.wait(_START_SECONDS)
                    break
                status = _STATUS.unpack(answer)
        finally:
            worker.kill()
            worker.communicate()
        errors.seek(0)
        said = errors.read().decode(errors="replace")[-_LAST_LINES:]
    last, accepted, refused, executions = status
    assert last >= first, f"the worker of {name} did not start: {said}"
    how = "hang" if is_stuck else f"crash (status {worker.returncode}) {said}"
    findings = [f"{name}:{last} {how}"] if is_stuck or worker.returncode else []
    return Result(last + 1 - first, accepted, refused, executions, findings)


def _is_silent(worker: subprocess.Popen[bytes], current: int) -> bool:
    """True if a worker neither ends nor says anything in the time of an input."""
    seconds = _START_SECONDS if current < 0 else _INPUT_SECONDS
    return not select.select([worker.stdout], [], [], seconds)[0]


class _Worker:
    """Feeds one reader inputs, in a process that may die of them, and writes its status to stdout.

    It does so before and after each input, so that the input of which it has died is known.
    """

    def __init__(self) -> None:
        # What a library prints must not mix with the status.
        self._answers = os.dup(1)
        os.dup2(2, 1)
        self._accepted = self._refused = self._executed = 0
        self._armed = False
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._armed:
            return
        # Modules that are imported late are compiled and run as well, but under their own names.
        named = str(arguments[1]) if event == "compile" else ""
        if event == "exec":
            named = str(getattr(arguments[0], "co_filename", ""))
        if event == "subprocess.Popen" and set(arguments[1]) & _CHILDREN:
            return
        self._executed += event in _EXECUTIONS or named in ("<string>", "<unknown>")

    def run(self, name: str, numbers: range) -> None:
        """Feed inputs; ends the process where a reader is wrong."""
        reader = READERS[name]
        with tempfile.TemporaryDirectory() as folder:
            made, place = Path(folder) / "seeds", Path(folder) / "read"
            made.mkdir()
            place.mkdir()
            os.chdir(folder)
            seeds = reader.seeds(made)
            for content in seeds:
                self._feed(reader.read, place, content)
            self._accepted = self._refused = 0
            for number in numbers:
                self._note(number)
                content = make_input(seeds, number, reader.make)
                size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                limits = (size + _INPUT_MEMORY, resource.RLIM_INFINITY)
                resource.setrlimit(resource.RLIMIT_AS, limits)
                self._armed = True
                self._feed(reader.read, place, content)
                self._armed = False
                self._executed += os.path.exists("executed")
                self._note(number)

    def _feed(self, read: Callable[[Path, bytes], object], place: Path, content: bytes) -> None:
        try:
            read(place, content)
            self._accepted += 1
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000, "not one line"
            self._refused += 1

    def _note(self, number: int) -> None:
        status = _STATUS.pack(number, self._accepted, self._refused, self._executed)
        os.write(self._answers, status)


def describe(results: dict[str, Result], seconds: float) -> str:
    """Return a table of the results, and each finding in a line."""
    total = sum(results.values(), Result())
    lines = [f"{'reader':<12}{'inputs':>9}{'accepted':>10}{'refused':>9} executions findings"]
    for name, one in {**results, "all": total}.items():
        counts = f"{one.inputs:>9,}{one.accepted:>10,}{one.refused:>9,}"
        lines.append(f"{name:<12}{counts}{one.executions:>11}{len(one.findings):>9}")
    lines.append(f"{seconds:.0f} s")
    return "\n".join([*lines, *(" | ".join(found.splitlines()) for found in total.findings)])


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run a campaign, or one input; return 1 if something was found."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.fuzz")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reproduce", metavar="READER:NUMBER")
    options = parser.parse_args(argv)
    began = time.monotonic()
    if options.reproduce:
        name, _, number = options.reproduce.partition(":")
        results = {name: run_range(name, int(number), int(number) + 1)}
    else:
        shares = {name: one.share for name, one in READERS.items()}
        results = run(shares, options.inputs, options.seed, processors.available())
    print(describe(results, time.monotonic() - began))
    return 0 if all(result.is_clean for result in results.values()) else 1


def work(name: str, first: str, stop: str) -> None:
    """Feed a range of inputs to a reader in this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _Worker().run(name, range(int(first), int(stop)))
    # Not through the destructors of MXNet, which have nothing to do with the readers.
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    sys.exit(main())
