"""What all benchmarks share, so that their numbers can be compared.

The speed of a machine varies: its clock changes, and other programs run on it. So the variants of a
benchmark are measured in turns within one run. The result is the median of the turns, and for a
ratio the median over the rounds (``ratio``). Every benchmark prints a Markdown report that begins
with the machine, takes ``--rounds`` and ``--json FILE``, and writes rows
of four keys into that file.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks.worker import pytorch_version
from runtime import processors
from runtime.command_line import positive_integer

_Name = TypeVar("_Name")

# Threads of OpenMP spin for some milliseconds after their work and would take processors from the
# variant that is measured next.
_REST_SECONDS = 0.1
_PACKAGES = ("mxnet", "numpy", "numba")
_VECTOR_FLAGS = ("avx512", "amx")


class _Ticks(NamedTuple):
    """Processor time since the machine started: what its host kept (stolen), and all."""

    stolen: int
    all: int

    @classmethod
    def now(cls) -> _Ticks:
        """Read the first line of /proc/stat: user, nice, system, idle, waiting, …, stolen."""
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return cls(ticks[-1], sum(ticks))


_AT_START = _Ticks.now()


@dataclasses.dataclass(frozen=True)
class Row:
    """One measured number.

    Attributes:
        case: what was done, with sizes and threads.
        name: of the variant.
        value: the median over the rounds.
        unit: of the value.
    """

    case: str
    name: str
    value: float
    unit: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every benchmark: ``--threads``, ``--rounds`` and ``--json``."""
    parser.add_argument(
        "--threads",
        type=_thread_counts,
        default="1,2" if processors.available() > 1 else "1",
        help="numbers of threads, each measured by itself (%(default)s)",
    )
    parser.add_argument(
        "--rounds", type=positive_integer, default=7, help="turns of each variant (%(default)s)"
    )
    parser.add_argument(
        "--json",
        type=file_to_write,
        metavar="FILE",
        help='write a list of {"case", "name", "value", "unit"}',
    )


def _thread_counts(text: str) -> tuple[int, ...]:
    counts = tuple(positive_integer(word.strip()) for word in text.split(","))
    usable = processors.available()
    if max(counts) > usable:
        raise argparse.ArgumentTypeError(
            f"{text} is more than the {usable} processors that this process may use, "
            "so it would measure how threads wait for each other; ask for fewer"
        )
    return counts


def file_to_write(text: str) -> Path:
    """Convert an option that is a file to be written into a folder that exists."""
    # Checked before the minutes of measuring, not after them.
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no file in an existing folder; make it first")
    return path


def interleave(
    variants: Mapping[_Name, Callable[[], float]], rounds: int
) -> dict[_Name, list[float]]:
    """Call each function once in every round.

    Args:
        variants: functions that measure once, by name.
        rounds: how often.

    Returns:
        The measurements of each, in the order of the rounds.
    """
    measured: dict[_Name, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, measure in variants.items():
            time.sleep(_REST_SECONDS)
            measured[name].append(measure())
    return measured


def ratio(own: Sequence[float], other: Sequence[float]) -> float:
    """The median ratio of one variant's measurements to another's of the same rounds.

    When the machine is slow for some minutes, both variants are, while the medians of all rounds
    may come from different minutes.
    """
    assert len(own) == len(other)
    return statistics.median(mine / theirs for mine, theirs in zip(own, other))


def write_json(path: Path, rows: Iterable[Row]) -> None:
    """Write the rows as a list of objects, whole or not at all."""
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
    unfinished.replace(path)


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Lay out a table: the first column to the left, all others to the right."""
    aligned = [":--", *("--:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, aligned, *lines))


def machine() -> str:
    """Describe the processor, the memory and the versions of what is measured, as a list.

    Call it after measuring: it includes the share of processor time that a virtual machine did not
    get although it had work. If that is large, a single number means little.
    """
    flags = [flag for flag in _cpu_field("flags").split() if flag.startswith(_VECTOR_FLAGS)]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    return "\n".join(
        (
            f"- processor: {_cpu_field('model name')}, "
            f"{processors.available()} of {os.cpu_count()} cores usable",
            f"- AVX-512 and AMX: {' '.join(sorted(flags)) or 'none'}",
            f"- memory: {memory:.1f} GiB",
            f"- taken by other guests of its host while this ran: {_stolen_share():.0%}",
            f"- {platform.system()} {platform.release()}, Python {platform.python_version()}, "
            f"{versions}, torch {pytorch_version()}",
            f"- commit: {commit()}",
        )
    )


def commit() -> str:
    """Name the commit that is measured, with "-dirty" where files differ from it."""
    root = Path(__file__).resolve().parents[1]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _stolen_share() -> float:
    now = _Ticks.now()
    return (now.stolen - _AT_START.stolen) / max(1, now.all - _AT_START.all)


def _cpu_field(field: str) -> str:
    """The value of a line of /proc/cpuinfo, whose fields differ on other architectures."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return platform.machine()


def _version(package: str) -> str:
    # MXNet's builds for GPUs have names of their own, such as mxnet-cu112.
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if name == package or name.startswith(f"{package}-cu"):
            return distribution.version
    return "not installed"
