"""Parts that all pictures share: reading of reports, colors, and metadata.

README and site are shown in light and dark, and an image knows nothing of the page around it. So
the background is transparent, and all inks are of a middle brightness (``tests`` compute their
contrast to both). Text stays text, in the reader's sans-serif font. A picture says in its metadata
what it was drawn from, and which machine and commit measured that.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from cycler import cycler
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "benchmarks" / "results"
RESULTS = ROOT / "docs" / "results"
_TABLE = re.compile(r"((?:^\|.*\|\n)+)", re.MULTILINE)
_PROCESSOR = re.compile(r"^- processor: (.*)$", re.MULTILINE)
_COMMIT = re.compile(r"^- commit: (\S+)$", re.MULTILINE)
_NUMBER = re.compile(r"-?[\d,]*\.?\d+")

Table = Sequence[Mapping[str, str]]

INK = "#757b84"
COLORS = ("#3b82c4", "#d27a22", "#35965a", "#c9504f", "#8b6fc4", "#857a2b", "#b0609a", "#35919b")
MARKS = "os^Dv<>p*hXP"
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
    "grid.color": INK,
    "axes.titlecolor": INK,
    "axes.prop_cycle": cycler(color=COLORS),
}


class Provenance(NamedTuple):
    """Where the numbers of a picture come from."""

    source: str
    """The file, from the project's folder."""
    machine: str
    """Its processor."""
    commit: str
    """Of the code that was measured."""


@contextmanager
def canvas(name: str, *, width: float = 5.8, height: float = 3.4) -> Iterator[Figure]:
    """Give a figure in the style of all; sizes are inches. ``name`` makes its identifiers."""
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": name}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure


def write(figure: Figure, path: Path, title: str, origin: Provenance) -> None:
    """Write a figure as SVG, with what it is and where it comes from."""
    metadata = {
        "Title": title,
        "Description": f"machine: {origin.machine}; commit: {origin.commit}",
        "Source": origin.source,
        "Creator": "make pictures",
        "Date": None,
    }
    target = io.StringIO()
    figure.savefig(target, format="svg", transparent=True, metadata=metadata)
    lines = (line.rstrip() for line in target.getvalue().splitlines())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


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
    """Return file, processor and commit of a report; the commit of the file if it names none."""
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
