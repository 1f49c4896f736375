from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from data.align.points import PointsFile
from data.align.similarity import TEMPLATE
from runtime.errors import DataError

IMAGE = np.zeros((4, 4, 3), np.uint8)
TEN = "38.5 51 73 51.25 56 71 41 92 70 92"
EXPECTED = np.array([[38.5, 51], [73, 51.25], [56, 71], [41, 92], [70, 92]])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"ann/1.jpg {TEN}\n", "ann/1.jpg"),
        (f"\n./ann/1.jpg\t{TEN}\n".replace(" ", "\t"), "ann/1.jpg"),
        # IJB: with the detector's score.
        (f"1.jpg {TEN} 0.999\n2.jpg {TEN} 0.5\n", "1.jpg"),
        # VGGFace2: commas, quotes, a heading, no ending.
        ('NAME_ID,P1X,P1Y,P2X,P2Y,P3X,P3Y,P4X,P4Y,P5X,P5Y\n"n02/0001_01",'
         f"{TEN.replace(' ', ',')}\n", "n02/0001_01.jpg"),
        # CelebA: two lines of heading.
        ("2\nlefteye_x lefteye_y righteye_x righteye_y nose_x nose_y leftmouth_x leftmouth_y "
         f"rightmouth_x rightmouth_y\n000001.jpg   {TEN}\n000002.jpg {TEN}\n", "000001.jpg"),
        # A name with spaces.
        (f"ann lee/my face 3.png,{TEN.replace(' ', ', ')}\r\n", "ann lee/my face 3.png"),
    ],
)  # fmt: skip
def test_published_forms_are_read(text: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "points").write_text(text)
    points = PointsFile(tmp_path / "points")
    assert (points.find(name, IMAGE) == EXPECTED).all()
    with pytest.raises(DataError, match="points has no points of it, under the name other.jpg"):
        points.find("other.jpg", IMAGE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no points: each line"),
        ("2\nname x y\n", "has no points"),
        (f"1.jpg {TEN}\n2.jpg {TEN} 1 2\n", "line 2: '2.jpg .* is not the name of an image"),
        ("1.jpg 1 2 3\n", "line 1"),
        (f"1.jpg {TEN.replace('73', 'nan')}\n", "line 1"),
        (f"1.jpg {TEN.replace('73', '1e999')}\n", "line 1"),
        (f"1.jpg {TEN}\n./1.jpg {TEN}\n", "line 2: '1.jpg' is there twice"),
        (f"my face.jpg {TEN}\n", "line 1"),
    ],
)
def test_other_lists_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "points").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        PointsFile(tmp_path / "points")
    assert "\n" not in str(caught.value)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("pipe", "bytes", "missing"):
        with pytest.raises(DataError, match="cannot be read as a list of points"):
            PointsFile(tmp_path / name)


def test_names_are_those_of_the_lines(tmp_path: Path) -> None:
    numbers = " ".join(map(str, TEMPLATE.ravel()))
    (tmp_path / "points").write_text(f"b/2.jpg {numbers}\na/1.jpg {numbers}\n")
    assert PointsFile(tmp_path / "points").names == ["b/2.jpg", "a/1.jpg"]
