"""The pictures are what is drawn from the results today, and can be read on white and on black."""

from __future__ import annotations

import re
from pathlib import Path

import cv2
import numpy as np

from benchmarks.pictures.__main__ import DRAWN, FOLDER

# A page in light, and in dark on GitHub and on the site.
PAGES = ("#ffffff", "#0d1117", "#1e2129")
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_NUMBER = re.compile(r"-?\d+\.\d+")


def luminance(color: str) -> float:
    """The relative luminance of WCAG 2."""
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def is_same(kept: Path, drawn: Path) -> bool:
    if kept.suffix == ".jpg":
        one, other = (cv2.imread(str(path)).astype(int) for path in (kept, drawn))
        return bool(np.abs(one - other).mean() < 2)
    one, other = (_METADATA.sub("", path.read_text(encoding="utf-8")) for path in (kept, drawn))
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    # Another NumPy may round the last digit of a coordinate.
    before, after = (np.array(_NUMBER.findall(text), float) for text in (one, other))
    return bool(np.allclose(before, after, rtol=0, atol=0.02))


def test_pictures_are_drawn_from_the_results(tmp_path: Path) -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*DRAWN, "method.svg"}
    for name, draw in DRAWN.items():
        draw(tmp_path / name)
    others = [name for name in DRAWN if not is_same(FOLDER / name, tmp_path / name)]
    assert others == [], "make pictures"


def test_pictures_can_be_read_in_light_and_dark() -> None:
    assert contrast("#777777", "#ffffff") > 3 > contrast("#222222", "#0d1117")
    inks = {
        (path.name, ink)
        for path in FOLDER.glob("*.svg")
        for ink in re.findall(r"#[0-9a-f]{6}\b", path.read_text(encoding="utf-8"))
    }
    pale = [one for one in inks if min(contrast(one[1], page) for page in PAGES) <= 3]
    assert len(inks) > 6 and pale == []
