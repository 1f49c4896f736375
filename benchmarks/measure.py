"""What all benchmarks share, so that their numbers can be compared.

The speed of a machine varies: its clock changes, and other programs run on it. So the variants of a
benchmark are measured in turns within one run. The result is the median of the turns, and for a
ratio the median over the rounds (``ratio``). Every benchmark prints a Markdown report that begins
with the machine.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Optional

from benchmarks.worker import ROOT, Worker
from runtime import processors
from runtime.command_line import Parser, positive_integer
from runtime.installed import mxnet_package

_PYTORCH = ROOT / ".venv-bench"
# Threads of OpenMP spin for some milliseconds after their work and would take processors from the
# variant that is measured next.
_REST_SECONDS = 0.1
_WARM_UP_STEPS = 2


def _ticks() -> tuple[int, int]:
    """Processor time since the machine started: what its host kept (stolen), and all."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return ticks[-1], sum(ticks)


_AT_START = _ticks()


class Variant(NamedTuple):
    """Work that is measured in a process of its own.

    Attributes:
        target: "module:Class" of the ``Subject``.
        arguments: of the class.
        first: arguments of a small one, which loads and compiles what is not a step's memory.
        python: the Python that has what the subject imports.
        variables: of the process's environment.
    """

    target: str
    arguments: Mapping[str, Any]
    first: Optional[Mapping[str, Any]] = None
    python: str = sys.executable
    variables: Mapping[str, str] = {}


class Measured(NamedTuple):
    """The seconds of a variant's steps, by round, and its peak of memory in bytes."""

    seconds: list[float]
    memory: Optional[int]

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return statistics.median(self.seconds)


class Case(NamedTuple):
    """Variants that are measured in turns, with so many threads each, for one table.

    Attributes:
        title: above the table.
        threads: of each process.
        variants: by their names.
        images: of a step; 0 if there are none.
    """

    title: str
    threads: int
    variants: Mapping[str, Variant]
    images: int = 0


def compare(
    variants: Mapping[str, Variant], threads: int, rounds: int, *, steps: int = 1
) -> dict[str, Measured]:
    """Measure each variant once per round; of several ``steps`` the last one counts."""
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, one in variants.items():
            worker = stack.enter_context(Worker(one.target, threads, one.python, one.variables))
            workers[name] = worker
            if one.first is not None:
                worker.create(one.first)
                worker.step()
            worker.create(one.arguments)
            for _ in range(_WARM_UP_STEPS):
                worker.step()
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        for _ in range(rounds):
            for name, worker in workers.items():
                time.sleep(_REST_SECONDS)
                seconds[name].append([worker.step() for _ in range(steps)][-1])
        return {name: Measured(seconds[name], workers[name].peak_memory()) for name in workers}


def sections(
    cases: Iterable[Case],
    rounds: int,
    *,
    column: str,
    sign: str,
    fastest: Iterable[str] = (),
    steps: int = 1,
) -> list[str]:
    """Measure cases; return the parts of a report: a title, a table, and lines below it.

    Args:
        cases: taken one after the other, each when it is measured.
        rounds: of each case.
        column: the title of the variants' column.
        sign: see ``table``.
        fastest: see ``with_fastest``.
        steps: see ``compare``.
    """
    found: list[str] = []
    for case in cases:
        print(f"measuring {case.title}", file=sys.stderr)
        every = compare(case.variants, case.threads, rounds, steps=steps)
        measured, said = with_fastest(every, *fastest)
        laid_out = table(measured, title=column, sign=sign, images=case.images)
        found += [f"## {case.title}", laid_out, *said]
    return found


def ratio(own: Sequence[float], other: Sequence[float]) -> float:
    """The median ratio of one variant's measurements to another's of the same rounds.

    When the machine is slow for some minutes, both variants are, while the medians of all rounds
    may come from different minutes.
    """
    assert len(own) == len(other)
    return statistics.median(mine / theirs for mine, theirs in zip(own, other))


def pytorch_python() -> Optional[str]:
    """The Python of the environment that has PyTorch and not MXNet; None if there is none."""
    return str(_PYTORCH / "bin/python") if (_PYTORCH / "installed").is_file() else None


def pytorch_forms(
    name: str, target: str, arguments: Mapping[str, Any], *, has_maps: bool = True
) -> dict[str, Variant]:
    """PyTorch's forms of one subject: eager and compiled, with maps in both memory formats.

    Args:
        name: before the names of all forms.
        target: "module:Class", with the further arguments ``compiled`` and ``channels_last``.
        arguments: of the class.
        has_maps: whether there are memory formats.

    Returns:
        The variants by their names; none if PyTorch is not installed.
    """
    python, found = pytorch_python(), {}
    if python is None:
        return {}
    for form, compiled in (("eager", False), ("compiled", True)):
        for layout, last in (("", False), (", channels last", True))[: 1 + has_maps]:
            chosen = {**arguments, "compiled": compiled, "channels_last": last}
            found[f"{name}: {form}{layout}"] = Variant(target, chosen, python=python)
    return found


def with_fastest(
    measured: Mapping[str, Measured], *names: str
) -> tuple[dict[str, Measured], list[str]]:
    """Put the fastest of PyTorch's forms in the place of all, under the name without the form.

    Returns:
        What was measured; and a line of Markdown for each of the names: which form counts, and the
        milliseconds of every one.
    """
    kept = {name: one for name, one in measured.items() if name.partition(":")[0] not in names}
    said = []
    for name in names:
        forms = {key: one for key, one in measured.items() if key.partition(":")[0] == name}
        if forms:
            best = min(forms, key=lambda key: forms[key].median)
            kept[name] = forms[best]
            every = "; ".join(f"{key} {1000 * one.median:.1f} ms" for key, one in forms.items())
            said.append(f"{name} is its fastest form, {best.partition(': ')[2]}, of: {every}.")
    return kept, said


def table(measured: Mapping[str, Measured], *, title: str, sign: str, images: int = 0) -> str:
    """Lay out variants that were measured in turns.

    Args:
        measured: the variants.
        title: of the first column.
        sign: "÷" for the time of a row over those of the others, "×" for the inverse.
        images: of a step; 0 if there are none.
    """
    header = [title, "ms", "from … to", *(["images/s"] if images else [])]
    header += [*(f"{sign} {name}" for name in measured), "peak memory (MiB)"]
    lines = []
    for name, own in measured.items():
        ratios = (ratio(own.seconds, other.seconds) for other in measured.values())
        if sign == "×":
            ratios = (ratio(other.seconds, own.seconds) for other in measured.values())
        least, most = 1000 * min(own.seconds), 1000 * max(own.seconds)
        cells = [name, f"{1000 * own.median:.1f}", f"{least:.1f} … {most:.1f}"]
        cells += [f"{images / own.median:.2f}"] * bool(images)
        memory = "" if own.memory is None else f"{own.memory / 2**20:,.0f}"
        lines.append([*cells, *(f"{one:.2f}" for one in ratios), memory])
    return markdown_table(header, lines)


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Lay out a table: the first column to the left, all others to the right."""
    aligned = [":--", *("--:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, aligned, *lines))


def print_report(title: str, said: str, sections: Iterable[str]) -> None:
    """Print a report: the machine under the title, what was measured, and its tables.

    Call it after measuring: the machine has the share of processor time that a virtual machine did
    not get although it had work. If that is large, a single number means little.
    """
    print(f"# {title}", machine(), said, *sections, sep="\n\n")


def parser(
    name: str, said: Optional[str], *, threads: Optional[int] = None, rounds: int = 7
) -> Parser:
    """Return the parser of a benchmark, with ``--threads`` and ``--rounds``.

    Args:
        name: of the module.
        said: its docstring.
        threads: the default; without, one thread and two are measured.
        rounds: the default.
    """
    made = Parser(prog=f"python -m benchmarks.{name}", description=(said or "").splitlines()[0])
    default = str(threads) if threads else "1,2" if processors.available() > 1 else "1"
    threads_help = "numbers of threads, each measured by itself (%(default)s)"
    add = made.add_argument
    add("--threads", type=_thread_counts, default=default, metavar="INT,...", help=threads_help)
    add("--rounds", type=positive_integer, default=rounds, help="turns of each (%(default)s)")
    return made


def counts(text: str) -> tuple[int, ...]:
    """Convert an option with whole numbers, separated by commas."""
    return tuple(positive_integer(word.strip()) for word in text.split(","))


def words(text: str) -> tuple[str, ...]:
    """Convert an option with words, separated by commas."""
    return tuple(word.strip() for word in text.split(","))


def share(text: str) -> float:
    """Convert an option that is above 0 and at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 1")
    return value


def _thread_counts(text: str) -> tuple[int, ...]:
    found, usable = counts(text), processors.available()
    if max(found) > usable:
        raise argparse.ArgumentTypeError(
            f"{text} is more than the {usable} processors that this process may use, "
            "so it would measure how threads wait for each other; ask for fewer"
        )
    return found


def machine() -> str:
    """Describe the processor, the memory and the versions of what is measured, as a list."""
    flags = set(re.findall(r"\b(?:avx512|amx)\w*", Path("/proc/cpuinfo").read_text()))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = {"mxnet": mxnet_package(), "numpy": "numpy", "numba": "numba"}
    versions = ", ".join(f"{name} {_version(one, sys.path)}" for name, one in packages.items())
    pytorch = [str(folder) for folder in _PYTORCH.glob("lib/python*/site-packages")]
    stolen, every = (now - then for now, then in zip(_ticks(), _AT_START))
    return "\n".join(
        (
            f"- processor: {processors.model()}, "
            f"{processors.available()} of {os.cpu_count()} cores usable",
            f"- AVX-512 and AMX: {' '.join(sorted(flags)) or 'none'}",
            f"- memory: {memory:.1f} GiB",
            f"- taken by other guests of its host while this ran: {stolen / max(1, every):.0%}",
            f"- {platform.system()} {platform.release()}, Python {platform.python_version()}, "
            f"{versions}, torch {_version('torch', pytorch)}",
            f"- commit: {commit()}",
        )
    )


def commit() -> str:
    """Name the commit that is measured, with "-dirty" where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _version(package: str, folders: list[str]) -> str:
    found = importlib.metadata.distributions(name=package, path=folders)
    return next((one.version for one in found), "not installed")
