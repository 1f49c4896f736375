from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.align.points import ListedFaces, PointsFile
from data.align.similarity import TEMPLATE, align, estimate
from runtime.errors import DataError
from tests.data.align.test_similarity import umeyama

TEN = "38.5 51 73 51.25 56 71 41 92 70 92"
COMMAS = TEN.replace(" ", ",")
EXPECTED = np.array([[38.5, 51], [73, 51.25], [56, 71], [41, 92], [70, 92]])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"\n./ann/1.jpg\t{TEN}\n".replace(" ", "\t"), "ann/1.jpg"),
        # IJB: with the detector's score.
        (f"1.jpg {TEN} 0.999\n2.jpg {TEN} 0.5\n", "1.jpg"),
        # VGGFace2: commas, quotes, a heading, no ending.
        ('NAME_ID,P1X,P1Y,P2X,P2Y,P3X,P3Y,P4X,P4Y,P5X,P5Y\n"n02/0001_01",'
         f"{COMMAS}\n", "n02/0001_01.jpg"),
        # CelebA: two lines of heading.
        ("2\nlefteye_x lefteye_y righteye_x righteye_y nose_x nose_y leftmouth_x leftmouth_y "
         f"rightmouth_x rightmouth_y\n000001.jpg   {TEN}\n000002.jpg {TEN}\n", "000001.jpg"),
        # A name with spaces.
        (f"ann lee/my face 3.png,{TEN.replace(' ', ', ')}\r\n", "ann lee/my face 3.png"),
        (f'"ann, lee/3.png",{COMMAS}\n', "ann, lee/3.png"),
        (f"ann,lee/3.png {TEN} 0.9\n", "ann,lee/3.png"),
        # Written on Windows, by a spreadsheet.
        (f"\ufeffann/1.jpg,{COMMAS},,,\r\n", "ann/1.jpg"),
        (f"ann\\1.jpg {TEN}\r\n", "ann/1.jpg"),
        (f"ann/a\\1.jpg {TEN}\n", "ann/a\\1.jpg"),
        (f"# name x y\n# of the eyes\n\n# and others\nann/1.jpg {TEN}\n", "ann/1.jpg"),
        (f"#1.jpg {TEN}\n", "#1.jpg"),
    ],
)  # fmt: skip
def test_published_forms_are_read(text: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "points").write_text(text)
    points = PointsFile(tmp_path / "points", tmp_path)
    assert (points.find(name) == EXPECTED).all()
    with pytest.raises(DataError, match="points has no points of it, under the name other.jpg"):
        points.find("other.jpg")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no points: each line is the name of an image, then x and y, in pixels, of left"),
        ("2\nname x y\n", "has no points"),
        (
            f"1.jpg {TEN}\n2.jpg {TEN} 1 2\n",
            "line 2: '2.jpg .* is not the name of an image and "
            "five points; each line is the name of an image, then x and y",
        ),
        # Without points at all, in what may be a heading; a label that is text.
        (f"1.jpg,1,2,3\n2.jpg {TEN}\n", "line 1"),
        (f"1.jpg ann {TEN}\n", "line 1"),
        (f"1.jpg {TEN.replace('73', '1e300')}\n", "line 1"),
        (f"1.jpg {TEN.replace('73', 'nan')}\n", "line 1"),
        (f"1.jpg {TEN}\n./1.jpg {TEN}\n", "line 2: '1.jpg' is there twice"),
        (f"my face.jpg {TEN}\n", "line 1"),
    ],
)
def test_other_lists_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "points").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        PointsFile(tmp_path / "points", tmp_path)
    assert "\n" not in str(caught.value)


def faces(count: int = 8) -> np.ndarray:
    """Points of faces of several sizes and places, each turned in the plane: ``[count, 5, 2]``."""
    rng, found = np.random.default_rng(3), []
    for angle in rng.uniform(-0.4, 0.4, count):
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        shape = (TEMPLATE - TEMPLATE.mean(axis=0)) @ turn * rng.uniform(0.5, 2)
        found.append(shape + rng.uniform(100, 160, 2) + rng.normal(0, 1, (5, 2)))
    return np.array(found)


LAYOUTS = {
    "a label before": lambda face: [7, *face.ravel()],
    "a large label before": lambda face: [85_741, *face.ravel()],
    "a score before": lambda face: [0.998, *face.ravel()],
    "five x, five y": lambda face: face.T.ravel(),
    "five y, five x": lambda face: face[:, ::-1].T.ravel(),
    "y and x": lambda face: face[:, ::-1].ravel(),
    "y upwards": lambda face: (face * [1, -1] + [0, 250]).ravel(),
    "the person's left and right": lambda face: face[[1, 0, 2, 4, 3]].ravel(),
    "the person's eyes": lambda face: face[[1, 0, 2, 3, 4]].ravel(),
    "the nose first": lambda face: face[[2, 0, 1, 3, 4]].ravel(),
    "the mouth first": lambda face: face[[3, 4, 2, 0, 1]].ravel(),
    "a box and three points": lambda face: [*face.min(0), *face.max(0), *face.ravel()[:6]],
}


def rows(lines: Iterable[Iterable[float]]) -> list[str]:
    return [f"{number}.jpg {' '.join(map(str, line))}\n" for number, line in enumerate(lines)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lists_with_other_columns_are_refused(layout: str, tmp_path: Path) -> None:
    for count in (8, 1):
        lines = rows(LAYOUTS[layout](face) for face in faces(count))
        (tmp_path / "points").write_text("".join(lines))
        message = "points, line 1: '0.jpg .* has points of no face, as {0} of {0} lines have; each"
        with pytest.raises(DataError, match=message.format(count)):
            PointsFile(tmp_path / "points", tmp_path)


def test_a_line_with_other_columns_is_refused_alone(tmp_path: Path) -> None:
    """Three of eight, as if two lists had been joined; half of them are too many."""
    wrong = rows([7, *face.ravel()] for face in faces())
    right = rows(face.ravel() for face in faces())
    (tmp_path / "points").write_text("".join(right[:5] + wrong[5:]))
    points = PointsFile(tmp_path / "points", tmp_path)
    assert points.names == [f"{number}.jpg" for number in range(8)]
    blank = np.zeros((250, 250, 3), np.uint8)
    for number in range(5):
        align(blank, points.find(f"{number}.jpg"))
    for number in range(5, 8):
        with pytest.raises(DataError, match="its points are those of (no|a mirrored) face"):
            align(blank, points.find(f"{number}.jpg"))
    (tmp_path / "points").write_text("".join(right[:4] + wrong[4:]))
    with pytest.raises(DataError, match="line 5: .* as 4 of 8 lines have"):
        PointsFile(tmp_path / "points", tmp_path)


def test_names_are_bytes_and_other_files_are_refused(tmp_path: Path) -> None:
    """Of files that a camera or an old system has named."""
    path = tmp_path / "points"
    path.write_bytes(f"m\u00fcller/1.jpg {TEN}\n".encode("latin-1"))
    assert (PointsFile(path, tmp_path).find(os.fsdecode(b"m\xfcller/1.jpg")) == EXPECTED).all()
    path.write_bytes(f"m\u00fcller/1.jpg\t{TEN}\r\n".encode("utf-16"))
    assert PointsFile(path, tmp_path).names == ["m\u00fcller/1.jpg"]
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("pipe", "bytes", "missing"):
        with pytest.raises(DataError, match="cannot be read as a list of points"):
            PointsFile(tmp_path / name, tmp_path)


MIRRORED = TEMPLATE[[1, 0, 2, 4, 3]] / 2 + np.array([3.0, -2.0])


def test_faces_are_cut_out_as_planes(tmp_path: Path) -> None:
    """Two faces of one image, of which one looks mirrored; what cannot be read is named."""
    image = np.random.default_rng(0).integers(0, 256, (80, 70, 3), dtype=np.uint8)
    (tmp_path / "a").mkdir()
    cv2.imwrite(str(tmp_path / "a" / "1.png"), image[..., ::-1])
    (tmp_path / "b.png").write_bytes(b"\x89PNG nothing")
    names = ["a/1.png", "a/1.png", "gone.png", "b.png", "a/1.png"]
    points = np.stack([TEMPLATE / 2, MIRRORED, TEMPLATE, TEMPLATE, np.ones((5, 2))])
    faces = ListedFaces(tmp_path, names, points)
    expected = align(image, TEMPLATE / 2).transpose(2, 0, 1)
    np.testing.assert_array_equal(faces.read(0), expected)
    matrix = umeyama(MIRRORED, TEMPLATE)
    turned = cv2.warpAffine(image, matrix, (112, 112)).transpose(2, 0, 1)
    np.testing.assert_allclose(faces.read(1).astype(int), turned.astype(int), atol=1)
    with pytest.raises(DataError, match="mirrored"):
        estimate(MIRRORED)
    for number, message in enumerate(
        ("gone.png cannot be read: No such", "b.png: the image", "1.png: its five points lie"), 2
    ):
        with pytest.raises(DataError, match=message):
            faces.read(number)
