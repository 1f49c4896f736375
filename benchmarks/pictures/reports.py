"""Reads the reports that benchmarks have printed: their tables, and where they were measured."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pictures.canvas import Provenance

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "benchmarks" / "results"
RESULTS = ROOT / "docs" / "results"
_TABLE = re.compile(r"((?:^\|.*\|\n)+)", re.MULTILINE)
_PROCESSOR = re.compile(r"^- processor: (.*)$", re.MULTILINE)
_COMMIT = re.compile(r"^- commit: (\S+)$", re.MULTILINE)
_NUMBER = re.compile(r"-?[\d,]*\.?\d+")

Table = Sequence[Mapping[str, str]]


def tables(name: str) -> dict[str, Table]:
    """The tables of a report by the heading above; of several below one, by its first column too.

    Raises:
        LookupError: there is none.
    """
    text = (REPORTS / f"{name}.md").read_text(encoding="utf-8")
    found: dict[str, Table] = {}
    for match in _TABLE.finditer(text):
        heading = re.findall(r"^#+ (.*)$", text[: match.start()], re.MULTILINE)[-1]
        header, _, *lines = [
            [cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in match[1].splitlines()
        ]
        # Two columns of one name: the later one gets its number.
        names = [
            name if name not in header[:place] else f"{name} {place}"
            for place, name in enumerate(header)
        ]
        key = heading if heading not in found else f"{heading}: {header[0]}"
        found[key] = [dict(zip(names, line)) for line in lines]
    if not found:
        raise LookupError(f"{name}.md has no table")
    return found


def number(cell: str) -> float:
    """The first number of a cell.

    Raises:
        ValueError: there is none.
    """
    match = _NUMBER.search(cell)
    if match is None:
        raise ValueError(f"{cell!r} has no number")
    return float(match[0].replace(",", ""))


def origin(name: str) -> Provenance:
    """Where a report was measured; by the commit that it came with if it names none."""
    path = REPORTS / f"{name}.md"
    text = path.read_text(encoding="utf-8")
    machine = _PROCESSOR.search(text)
    commit = _COMMIT.search(text)
    source = path.relative_to(ROOT).as_posix()
    return Provenance(
        source,
        machine[1] if machine else "see there",
        commit[1] if commit else f"that of {source}, {_commit_of(source)}",
    )


def _commit_of(source: str) -> str:
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--", source]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def result(name: str) -> Any:
    """The content of a file in docs/results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
