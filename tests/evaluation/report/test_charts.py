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
    x, y = charts._thinned(*series(100_000)[1:3])
    assert len(x) == len(y) == 400 and x[0] == np.arange(1, 251).mean()
    assert y[-1] == pytest.approx((1 / np.arange(99_751.0, 100_001)).mean())
    for count in (0, 1, 20):
        short = charts.lines(FRAME, [series(count)], smooths=True, from_zero=True)
        assert "<svg" in short.svg and "running mean" not in short.frame.note
