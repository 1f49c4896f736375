"""The pictures are what is drawn from the results today, and can be read on white and on black."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest

from benchmarks.pictures import reports
from benchmarks.pictures.__main__ import DRAWN, FOLDER
from benchmarks.pictures.canvas import Provenance, canvas, write

PICTURES = sorted(FOLDER.iterdir())
SVG = [path for path in PICTURES if path.suffix == ".svg"]
# A page in light, and in dark on GitHub and on the site.
PAGES = ("#ffffff", "#0d1117", "#1e2129")
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_COLOR = re.compile(r"#[0-9a-f]{6}\b")
_NUMBER = re.compile(r"-?\d+\.\d+")


def luminance(color: str) -> float:
    """The relative luminance of WCAG 2."""
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def name(path: Path) -> str:
    return path.name


def test_every_picture_is_drawn_by_one_command_or_by_hand() -> None:
    assert {path.name for path in PICTURES} == {*DRAWN, "method.svg"}


@pytest.mark.parametrize("path", PICTURES, ids=name)
def test_a_picture_is_small(path: Path) -> None:
    assert 2_000 < path.stat().st_size < 100_000


@pytest.mark.parametrize("path", SVG, ids=name)
def test_a_picture_is_drawn_from_the_results(path: Path, tmp_path: Path) -> None:
    if path.name not in DRAWN:
        assert "by hand" in path.read_text(encoding="utf-8")
        return
    DRAWN[path.name](tmp_path / path.name)
    kept, drawn = (
        _METADATA.sub("", one.read_text(encoding="utf-8")) for one in (path, tmp_path / path.name)
    )
    # Another NumPy may round the last digit of a coordinate.
    assert _NUMBER.sub("#", kept) == _NUMBER.sub("#", drawn), "make pictures"
    before, after = (np.array(_NUMBER.findall(text), float) for text in (kept, drawn))
    np.testing.assert_allclose(before, after, atol=0.02)


@pytest.mark.parametrize("path", SVG, ids=name)
def test_a_picture_can_be_read_in_light_and_dark(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "sans-serif" in text and "http" not in re.sub(r'xmlns(:\w+)?="\S+"', "", _METADATA.sub(
        "", re.sub(r"<!DOCTYPE.*?>", "", text, flags=re.DOTALL)
    ))  # fmt: skip
    inks = set(_COLOR.findall(text))
    assert inks
    for ink in inks:
        assert min(contrast(ink, page) for page in PAGES) > 3, ink


@pytest.mark.parametrize("path", [FOLDER / name for name in DRAWN], ids=name)
def test_a_picture_says_where_it_comes_from(path: Path) -> None:
    text = path.read_bytes().decode(errors="replace")
    found = re.search(r"machine: (.+?); commit: [^<]*?\b([0-9a-f]{7,})", text)
    assert found is not None and "usable" in found[1]


def test_the_sheet_is_that_of_the_drawn_faces(tmp_path: Path) -> None:
    DRAWN["drawn-faces.jpg"](tmp_path / "sheet.jpg")
    both = [
        cv2.imread(str(path)).astype(int)
        for path in (FOLDER / "drawn-faces.jpg", tmp_path / "sheet.jpg")
    ]
    assert np.abs(both[0] - both[1]).mean() < 2


def test_colors_that_cannot_be_read_would_be_noticed() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert min(contrast("#222222", page) for page in PAGES) < 3


def test_tables_of_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """# Speeds

- processor: a processor, 2 of 2 cores usable
- commit: 0123abc

| a | ms | ms |
| :-- | --: | --: |
| x | 1,234.5 | 2 |

| b | ms |
| :-- | --: |
| y | 0.5 … 0.7 |
"""
    (tmp_path / "made-up.md").write_text(text)
    monkeypatch.setattr(reports, "REPORTS", tmp_path)
    monkeypatch.setattr(reports, "ROOT", tmp_path)
    first, second = reports.tables("made-up").values()
    assert first == [{"a": "x", "ms": "1,234.5", "ms 2": "2"}]
    assert [reports.number(cell) for cell in (first[0]["ms"], second[0]["ms"])] == [1234.5, 0.5]
    assert reports.origin("made-up") == Provenance(
        "made-up.md", "a processor, 2 of 2 cores usable", "0123abc"
    )
    with pytest.raises(ValueError, match="'none' has no number"):
        reports.number("none")
    (tmp_path / "empty.md").write_text("# Nothing\n")
    with pytest.raises(LookupError, match="no table"):
        reports.tables("empty")


def test_one_drawing_is_one_file(tmp_path: Path) -> None:
    """Neither time nor chance is in it, so a picture that has not changed makes no difference."""
    for number in (1, 2):
        with canvas("made-up") as figure:
            figure.add_subplot().plot([1, 2], [3, 4])
            write(figure, tmp_path / f"{number}.svg", "A line", Provenance("f", "m", "0123abc"))
    one, two = ((tmp_path / f"{number}.svg").read_bytes() for number in (1, 2))
    assert one == two and b"A line" in one
