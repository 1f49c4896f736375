"""What all pictures share: colors that can be read on white and on black, and their metadata.

README and site are shown in light and dark, and an image knows nothing of the page around it. So
the background is transparent, and all inks are of a middle brightness (``tests`` compute their
contrast to both). Text stays text, in the reader's sans-serif font. A picture says in its metadata
what it was drawn from, and which machine and commit measured that.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from cycler import cycler
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

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
