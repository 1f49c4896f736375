"""The charts of a report: lines with intervals, ROC curves, histograms; as SVG for HTML.

The page shows them in light and dark colors and at any width, so an SVG has no colors and no size
of its own: matplotlib draws with numbers in place of colors, which become variables of the page's
style, and text stays text in the page's font. All charts have one size, which is about that of a
telephone; a wide screen shows several side by side. No text of a run gets into a chart: its names
are in the legends, which are HTML.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from evaluation.report import elements

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Numbers = NDArray[np.float64]

# #0000xy becomes the variable --cxy of the page.
_INK, _MUTED, _GRID = "#000001", "#000002", "#000003"
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


class Frame(NamedTuple):
    """What is around the curves of a chart.

    Attributes:
        name: of the chart, unique on a page; small letters and hyphens.
        title: above it.
        x: what the horizontal axis has.
        y: what the vertical axis has.
        note: what a reader has to know, a sentence or two.
    """

    name: str
    title: str
    x: str
    y: str
    note: str = ""


def lines(
    frame: Frame,
    series: Sequence[Series],
    *,
    marks: Sequence[float] = (),
    from_zero: bool = False,
) -> str:
    """Return curves over updates.

    Args:
        frame: around them.
        series: the curves.
        marks: places on the horizontal axis with a vertical line.
        from_zero: whether the vertical axis begins at 0.
    """

    def plot(axes: Axes, ticker: Any) -> None:
        for mark in marks:
            axes.axvline(mark, color=_MUTED, linewidth=1, linestyle=(0, (2, 3)))
        for one in series:
            color = _color(one.place)
            if one.low is not None and one.high is not None:
                axes.fill_between(one.x, one.low, one.high, color=color, alpha=0.18, linewidth=0)
            marker = "o" if len(one.x) <= 40 else ""
            points = _thinned(one.x, one.y)
            axes.plot(*points, color=color, linewidth=1.8, marker=marker, markersize=3)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        axes.yaxis.set_major_locator(ticker.MaxNLocator(nbins=6))
        if from_zero:
            axes.set_ylim(0, 1.08 * max([1e-9, *(one.y.max() for one in series if len(one.y))]))

    return _draw(frame, plot, {one.label: one.place for one in series})


def curves_of_rates(frame: Frame, series: Sequence[Series], smallest: float) -> str:
    """Return ROC curves; ``smallest`` is where the logarithmic horizontal axis begins."""

    def plot(axes: Axes, ticker: Any) -> None:
        for one in series:
            shown = one.x >= smallest
            axes.plot(one.x[shown], one.y[shown], color=_color(one.place), linewidth=1.8)
        diagonal = np.geomspace(smallest, 1, 50)
        axes.plot(diagonal, diagonal, color=_MUTED, linewidth=1, linestyle=(0, (2, 3)))
        axes.set_xscale("log")
        axes.set_xlim(smallest, 1)
        axes.set_ylim(0, 1.01)
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())

    return _draw(frame, plot, {one.label: one.place for one in series})


def histograms(frame: Frame, groups: Sequence[tuple[str, Numbers]]) -> str:
    """Return the histogram of each group in one chart; each has the area 1."""

    def plot(axes: Axes, ticker: Any) -> None:
        everything = np.concatenate([values for _, values in groups])
        low, high = float(everything.min()), float(everything.max())
        edges = np.linspace(low, max(high, low + 1e-6), _BINS + 1)
        for index, (_, values) in enumerate(groups):
            heights = np.histogram(values, edges)[0] / len(values)
            axes.stairs(heights, edges, fill=True, color=_color(index), alpha=0.35)
            axes.stairs(heights, edges, color=_color(index), linewidth=1.4)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1, symbol=" %"))

    return _draw(frame, plot, {name: index for index, (name, _) in enumerate(groups)})


def _draw(frame: Frame, plot: Callable[[Axes, Any], None], legend: Mapping[str, int]) -> str:
    # Importing matplotlib takes longer than a wrong option may take to be answered.
    import matplotlib
    from matplotlib import ticker
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none", "svg.hashsalt": frame.name, "font.size": _FONT,
        "text.color": _INK, "axes.labelcolor": _MUTED, "axes.edgecolor": _GRID,
        "xtick.color": _GRID, "ytick.color": _GRID,
        "xtick.labelcolor": _MUTED, "ytick.labelcolor": _MUTED,
        "axes.spines.top": False, "axes.spines.right": False,
        "axes.grid": True, "axes.axisbelow": True, "grid.color": _GRID, "grid.linewidth": 0.6,
    }  # fmt: skip
    target = io.StringIO()
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=_INCHES, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot(xlabel=frame.x, ylabel=frame.y)
        plot(axes, ticker)
        names = ("Date", "Creator", "Format", "Type")
        figure.savefig(target, format="svg", transparent=True, metadata=dict.fromkeys(names))
    content = _for_page(target.getvalue(), frame) + elements.legend(legend)
    return elements.figure(frame.name, frame.title, content, frame.note)


def _for_page(svg: str, frame: Frame) -> str:
    """The SVG as a part of an HTML page: colors and fonts of the page, identifiers of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    box = re.search(r'viewBox="[-\d. ]+"', svg)
    assert box, "matplotlib writes one"
    svg = svg[svg.index(">") + 1 :]
    svg = re.sub(r"#0000([0-9a-f]{2})\b", r"var(--c\1)", svg)
    svg = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r'\bid="', f'id="{frame.name}-', svg)
    svg = svg.replace("url(#", f"url(#{frame.name}-")
    svg = svg.replace('xlink:href="#', f'href="#{frame.name}-')
    return f'<svg {box[0]} role="img" aria-label="{html.escape(frame.title)}">{svg}'


def _color(index: int) -> str:
    return f"#0000{elements.FIRST_COLOR + index % elements.COLORS:02x}"


def _thinned(x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    """Return at most ``_POINTS`` points, each the mean of those that it stands for."""
    if len(x) <= _POINTS:
        return x, y
    starts = np.linspace(0, len(x), _POINTS, endpoint=False).astype(np.int64)
    sizes = np.diff([*starts.tolist(), len(x)])
    return np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes
