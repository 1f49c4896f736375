from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from evaluation.report import charts
from evaluation.report.charts import Frame, Series

FRAME = Frame("a-chart", "A <chart>", "update", "loss")


def series(count: int, label: str = "a") -> Series:
    x = np.arange(1.0, count + 1)
    return Series(label, x, 1 / x)


def test_a_chart_has_the_colors_of_the_page_and_text() -> None:
    picture = charts.lines(FRAME, [series(5), series(5, "b")], marks=[2.0])
    assert not re.search(r"#[0-9a-fA-F]{6}|font-family", picture.svg)
    for said in ("var(--c10)", "var(--c11)", "var(--c02)", "var(--c03)", ">loss</text>",
                 'aria-label="A &lt;chart&gt;"'):  # fmt: skip
        assert said in picture.svg
    assert picture.legend == {"a": 0, "b": 1}


def drawn(svg: str, *style: str) -> list[np.ndarray]:
    """The points [n, 2] of each line in a chart whose style has these words."""
    found = re.findall(r'<path d="([^"]*)" clip-path[^>]*? style="(fill: none[^"]*)"', svg)
    chosen = [points for points, said in found if all(one in said for one in style)]
    return [np.array(re.findall(r"[-.\d]+", one), float).reshape(-1, 2) for one in chosen]


def test_lines_are_where_their_numbers_are() -> None:
    x, y = np.array([10.0, 20, 40]), np.array([1.0, 3, 2])
    one = Series("a", x, y, y - 0.5, y + 0.5)
    svg = charts.lines(FRAME, [one], marks=[20.0], from_zero=True).svg
    (line,), (mark,) = drawn(svg, "--c10", "width: 1.8"), drawn(svg, "--c02", "dasharray: 2,3")
    assert np.corrcoef(line[:, 0], x)[0, 1] == pytest.approx(1)
    scale, zero = np.polyfit(y, line[:, 1], 1)
    # The axis goes from 0 to a little above the largest.
    assert [zero, zero + 1.08 * 3 * scale] == pytest.approx(mark[:, 1])
    assert mark[:, 0] == pytest.approx(line[1, 0]) and svg.count("fill-opacity: 0.18") == 1
    curve = Series("a", np.array([0, 0.01, 0.1, 1]), np.array([0, 0.5, 0.8, 1]))
    (line,) = drawn(charts.curves_of_rates(FRAME, [curve], 1e-3).svg, "--c10")
    assert len(line) == 3 and np.ptp(np.diff(line[:, 0])) == pytest.approx(0, abs=1e-3)
    assert np.corrcoef(line[:, 1], curve.y[1:])[0, 1] == pytest.approx(-1)
    svg = charts.histograms(FRAME, [("a", np.arange(9.0)), ("b", np.ones(4))], 3.0).svg
    (first,), (mark,) = drawn(svg, "--c10"), drawn(svg, "--c01", "dasharray: 4.8,2.4")
    (second,), low = drawn(svg, "--c11"), first[0, 1]
    share = (mark[0, 0] - first[0, 0]) / np.ptp(first[:, 0])
    assert share == pytest.approx(3 / 8, abs=1e-3)
    # A ninth of the one in nine of fifty bins, and all of the other in one.
    assert np.ptp(first[:, 1]) == pytest.approx(np.ptp(second[:, 1]) / 9, rel=1e-3)
    assert ((first[:, 1] < low).sum(), (second[:, 1] < low).sum()) == (18, 2)


def test_identifiers_are_the_charts_own_and_lead_somewhere() -> None:
    svg = charts.histograms(FRAME, [("a", np.arange(9.0)), ("b", np.arange(9.0) / 2)], 3.0).svg
    root = ElementTree.fromstring(svg)
    names = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(names) == len(set(names)) and all(name.startswith("a-chart-") for name in names)
    used = re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', svg)
    assert used and {"".join(one) for one in used} <= set(names)


def test_a_long_run_has_as_many_points_as_can_be_seen() -> None:
    """Of 100,000 reports; each point is the mean of those that it stands for."""
    long = charts.lines(FRAME, [series(100_000)], smooths=True)
    assert len(long.svg) < 60_000 and "running mean" in long.frame.note
    widths = re.findall(r"stroke-opacity: 0.35; stroke-width: 0.8|stroke-width: 1.8", long.svg)
    assert len(widths) == 2
    x, y = charts._thinned(*series(100_000)[1:3])
    assert len(x) == len(y) == 400 and x[0] == np.arange(1, 251).mean()
    assert y[-1] == pytest.approx((1 / np.arange(99_751.0, 100_001)).mean())
    for count in (0, 1, 20):
        short = charts.lines(FRAME, [series(count)], smooths=True, from_zero=True)
        assert "<svg" in short.svg and "running mean" not in short.frame.note
    assert "running mean" not in charts.lines(FRAME, [series(1000)]).frame.note
