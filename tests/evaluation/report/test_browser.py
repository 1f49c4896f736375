"""The pages in headless Chromium, at the width of a screen and of a telephone, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluation.report import __main__ as report
from tests.support import browser, made_up_runs
from tests.support.browser import Browser

pytestmark = [
    pytest.mark.documents,
    pytest.mark.browser,
    pytest.mark.skipif(not browser.is_installed(), reason="needs chromium and chromedriver"),
]

LONG = "a-name-" * 30
_CHARTS = """
return [...document.querySelectorAll("figure img")].map(picture => {
    const {left, right, height} = picture.getBoundingClientRect();
    const {filter} = getComputedStyle(picture);
    return {left, right, height, filter, loaded: picture.naturalWidth > 0};
});
"""
_WIDTHS = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
_BACKGROUND = "return getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser() as window:
        yield window


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    sets = ("lfw", "cfp_fp", "agedb_30")
    faces = made_up_runs.write_faces(folder / LONG, updates=40_000, targets=sets, rec=[LONG] * 3)
    images = made_up_runs.write_images(folder / "images")
    for name, runs in (("faces", [faces]), ("all", [faces, images, faces])):
        report.main([*map(str, runs), "--out", str(folder / f"{name}.html")])
    return folder


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(("name", "charts"), [("faces", 9), ("all", 11)])
def test_a_page_can_be_read(chromium: Browser, pages: Path, name, charts, width) -> None:
    chromium.open(pages / f"{name}.html", width=width)
    assert chromium.console() == []
    content, window = chromium.ask(_WIDTHS)
    assert content <= window <= width
    found = chromium.ask(_CHARTS)
    assert len(found) == charts
    for chart in found:
        assert chart["loaded"] and chart["height"] > 150, chart
        assert 0 <= chart["left"] < chart["right"] <= window, chart


def test_light_and_dark(chromium: Browser, pages: Path) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        chromium.open(pages / "faces.html", width=1280, scheme=scheme)
        seen[scheme] = chromium.ask(_BACKGROUND), chromium.ask(_CHARTS)[0]["filter"]
    assert seen["light"][0] != seen["dark"][0] and seen["light"][1] != seen["dark"][1]
