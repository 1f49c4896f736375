"""The charts of a report: lines with intervals, ROC curves, histograms; as SVG.

The page shows them in light and dark, with inverted colors, and at any width. All charts have one
size, which is about that of a telephone; a wide screen shows several side by side. No text of a run
gets into a chart: its names are in the legends, which are HTML.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from evaluation.report import elements

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Numbers = NDArray[np.float64]

_INK, _MUTED, _GRID = "#1b2430", "#566272", "#dde2e8"
_INCHES = (4.7, 3.0)
_POINTS = 400
_BINS = 50
_FONT = 9.5


class Series(NamedTuple):
    """A curve.

    Attributes:
        label: what it shows, in the legend.
        place: which color it has.
        x: of its points.
        y: of its points.
        low: of the interval around each point.
        high: of the interval around each point.
    """

    label: str
    place: int
    x: Numbers
    y: Numbers
    low: Optional[Numbers] = None
    high: Optional[Numbers] = None


def lines(
    y: str, series: Sequence[Series], *, marks: Sequence[float] = (), from_zero: bool = False
) -> bytes:
    """Return curves over updates.

    Args:
        y: what the vertical axis has.
        series: the curves.
        marks: places on the horizontal axis with a vertical line.
        from_zero: whether the vertical axis begins at 0.
    """

    def plot(axes: Axes, ticker: Any) -> None:
        for mark in marks:
            axes.axvline(mark, color=_MUTED, linewidth=1, linestyle=(0, (2, 3)))
        for one in series:
            color = elements.color(one.place)
            if one.low is not None and one.high is not None:
                axes.fill_between(one.x, one.low, one.high, color=color, alpha=0.18, linewidth=0)
            marker = "o" if len(one.x) <= 40 else ""
            x, y = _thinned(one.x), _thinned(one.y)
            axes.plot(x, y, color=color, linewidth=1.8, marker=marker, markersize=3)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        axes.yaxis.set_major_locator(ticker.MaxNLocator(nbins=6))
        if from_zero:
            axes.set_ylim(0, 1.08 * max([1e-9, *(one.y.max() for one in series if len(one.y))]))

    return _draw("update", y, plot)


def curves_of_rates(series: Sequence[Series], smallest: float) -> bytes:
    """Return ROC curves; ``smallest`` is where the logarithmic horizontal axis begins."""

    def plot(axes: Axes, ticker: Any) -> None:
        for one in series:
            shown = one.x >= smallest
            axes.plot(one.x[shown], one.y[shown], color=elements.color(one.place), linewidth=1.8)
        diagonal = np.geomspace(smallest, 1, 50)
        axes.plot(diagonal, diagonal, color=_MUTED, linewidth=1, linestyle=(0, (2, 3)))
        axes.set_xscale("log")
        axes.set_xlim(smallest, 1)
        axes.set_ylim(0, 1.01)
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())

    return _draw("false accept rate", "true accept rate", plot)


def histograms(groups: Sequence[Numbers]) -> bytes:
    """Return the histogram of each group of cosines in one chart; each has the area 1."""

    def plot(axes: Axes, ticker: Any) -> None:
        everything = np.concatenate(groups)
        low, high = float(everything.min()), float(everything.max())
        edges = np.linspace(low, max(high, low + 1e-6), _BINS + 1)
        for index, values in enumerate(groups):
            heights = np.histogram(values, edges)[0] / len(values)
            axes.stairs(heights, edges, fill=True, color=elements.color(index), alpha=0.35)
            axes.stairs(heights, edges, color=elements.color(index), linewidth=1.4)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1, symbol=" %"))

    return _draw("cosine of a pair", "share of its kind", plot)


def _draw(x: str, y: str, plot: Callable[[Axes, Any], None]) -> bytes:
    # Importing matplotlib takes longer than a wrong option may take to be answered.
    import matplotlib
    from matplotlib import ticker
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none", "font.size": _FONT,
        "text.color": _INK, "axes.labelcolor": _MUTED, "axes.edgecolor": _GRID,
        "xtick.color": _GRID, "ytick.color": _GRID,
        "xtick.labelcolor": _MUTED, "ytick.labelcolor": _MUTED,
        "axes.spines.top": False, "axes.spines.right": False,
        "axes.grid": True, "axes.axisbelow": True, "grid.color": _GRID, "grid.linewidth": 0.6,
    }  # fmt: skip
    target = io.BytesIO()
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.add_subplot(xlabel=x, ylabel=y)
        plot(axes, ticker)
        figure.savefig(target, format="svg", transparent=True)
    return target.getvalue()


def _thinned(values: Numbers) -> Numbers:
    """Return at most ``_POINTS`` means of as many values each; the first that are over go."""
    each = max(1, -(-len(values) // _POINTS))
    means: Numbers = values[len(values) % each :].reshape(-1, each).mean(axis=1)
    return means
