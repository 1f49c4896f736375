from __future__ import annotations

import os
from functools import partial

import cv2
import numpy as np
import pytest

from data.align.points import ListedFaces, PointsFile
from data.align.similarity import TEMPLATE, align, estimate
from tests.data.align.test_similarity import umeyama
from tests.support.sets import assert_refused

TEN = "38.5 51 73 51.25 56 71 41 92 70 92"
COMMAS = TEN.replace(" ", ",")
EXPECTED = np.array(TEN.split(), float).reshape(5, 2)


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a list of this text or these bytes."""

    def read_list(text) -> PointsFile:
        (tmp_path / "points").write_bytes(text if isinstance(text, bytes) else text.encode())
        return PointsFile(tmp_path / "points", tmp_path)

    return read_list


@pytest.mark.parametrize(("text", "name"), [
    (f"\n./ann/1.jpg\t{TEN}\n".replace(" ", "\t"), "ann/1.jpg"),
    # IJB: with the detector's score.
    (f"1.jpg {TEN} 0.999\n2.jpg {TEN} 0.5\n", "1.jpg"),
    # VGGFace2: commas, quotes, a heading, no ending.
    (f'NAME_ID,P1X,P1Y,P2X,P2Y\n"n02/0001_01",{COMMAS}\n', "n02/0001_01.jpg"),
    # CelebA: two lines of heading.
    (f"2\nlefteye_x lefteye_y\n000001.jpg   {TEN}\n000002.jpg {TEN}\n", "000001.jpg"),
    # A name with spaces.
    (f"ann lee/my face 3.png,{TEN.replace(' ', ', ')}\r\n", "ann lee/my face 3.png"),
    (f'"ann, lee/3.png",{COMMAS}\n', "ann, lee/3.png"),
    (f"ann,lee/3.png {TEN} 0.9\n", "ann,lee/3.png"),
    # Written on Windows, by a spreadsheet.
    (f"\ufeffann/1.jpg,{COMMAS},,,\r\n", "ann/1.jpg"),
    (f"m\u00fcller/1.jpg\t{TEN}\r\n".encode("utf-16"), "m\u00fcller/1.jpg"),
    (f"ann\\1.jpg {TEN}\r\n", "ann/1.jpg"),
    (f"ann/a\\1.jpg {TEN}\n", "ann/a\\1.jpg"),
    (f"# name x y\n# of the eyes\n\n# and others\nann/1.jpg {TEN}\n", "ann/1.jpg"),
    (f"#1.jpg {TEN}\n", "#1.jpg"),
    # A name that a camera or an old system has given.
    (f"m\u00fcller/1.jpg {TEN}\n".encode("latin-1"), os.fsdecode(b"m\xfcller/1.jpg")),
])  # fmt: skip
def test_published_forms_are_read(read, text, name: str) -> None:
    points = read(text)
    assert (points.find(name) == EXPECTED).all()
    assert_refused("points has no points of it, under the name other.jpg", points.find, "other.jpg")


@pytest.mark.parametrize(("text", "message"), [
    ("", "has no points: each line is the name of an image, then x and y, in pixels, of left"),
    ("2\nname x y\n", "has no points"),
    (f"1.jpg {TEN}\n2.jpg {TEN} 1 2\n",
     "line 2: '2.jpg .* is not the name of an image and five points; each line is the name of"),
    # Without points at all, in what may be a heading; a label that is text.
    (f"1.jpg,1,2,3\n2.jpg {TEN}\n", "line 1"),
    (f"1.jpg ann {TEN}\n", "line 1"),
    (f"1.jpg {TEN.replace('73', '1e300')}\n", "line 1"),
    (f"1.jpg {TEN.replace('73', 'nan')}\n", "line 1"),
    (f"1.jpg {TEN}\n./1.jpg {TEN}\n", "line 2: '1.jpg' is there twice"),
    (f"my face.jpg {TEN}\n", "line 1"),
    (b"\xff\xfe\x00", "cannot be read as a list of points"),
])  # fmt: skip
def test_other_lists_are_refused(read, text, message: str) -> None:
    assert_refused(message, read, text)


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
    "a score before": lambda face: [0.998, *face.ravel()],
    "five x, five y": lambda face: face.T.ravel(),
    "five y, five x": lambda face: face[:, ::-1].T.ravel(),
    "y and x": lambda face: face[:, ::-1].ravel(),
    "y upwards": lambda face: (face * [1, -1] + [0, 250]).ravel(),
    "the person's left and right": lambda face: face[[1, 0, 2, 4, 3]].ravel(),
    "the person's eyes": lambda face: face[[1, 0, 2, 3, 4]].ravel(),
    "the nose first": lambda face: face[[2, 0, 1, 3, 4]].ravel(),
    "a box and three points": lambda face: [*face.min(0), *face.max(0), *face.ravel()[:6]],
}


def rows(layout, count: int = 8) -> list[str]:
    lines = (" ".join(map(str, layout(face))) for face in faces(count))
    return [f"{number}.jpg {line}\n" for number, line in enumerate(lines)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lists_with_other_columns_are_refused(read, layout: str) -> None:
    message = "points, line 1: '0.jpg .* has points of no face, as {0} of {0} lines have; each"
    for count in (8, 1):
        assert_refused(message.format(count), read, "".join(rows(LAYOUTS[layout], count)))


def test_a_line_with_other_columns_is_refused_alone(read) -> None:
    """Three of eight, as if two lists had been joined; half of them are too many."""
    wrong, right = rows(LAYOUTS["a label before"]), rows(np.ravel)
    points = read("".join(right[:5] + wrong[5:]))
    assert points.names == [f"{number}.jpg" for number in range(8)]
    cut = partial(align, np.zeros((250, 250, 3), np.uint8))
    for number in range(5):
        cut(points.find(f"{number}.jpg"))
    for number in range(5, 8):
        assert_refused("those of (no|a mirrored) face", cut, points.find(f"{number}.jpg"))
    assert_refused("line 5: .* as 4 of 8 lines have", read, "".join(right[:4] + wrong[4:]))


def test_faces_are_cut_out_as_planes(tmp_path) -> None:
    """Two faces of one image, of which one looks mirrored; what cannot be read is named."""
    image = np.random.default_rng(0).integers(0, 256, (80, 70, 3), dtype=np.uint8)
    (tmp_path / "a").mkdir()
    cv2.imwrite(str(tmp_path / "a" / "1.png"), image[..., ::-1])
    (tmp_path / "b.png").write_bytes(b"\x89PNG nothing")
    mirrored = TEMPLATE[[1, 0, 2, 4, 3]] / 2 + np.array([3.0, -2.0])
    names = ["a/1.png", "a/1.png", "gone.png", "b.png", "a/1.png"]
    points = np.stack([TEMPLATE / 2, mirrored, TEMPLATE, TEMPLATE, np.ones((5, 2))])
    faces = ListedFaces(tmp_path, names, points)
    expected = align(image, TEMPLATE / 2).transpose(2, 0, 1)
    np.testing.assert_array_equal(faces.read(0), expected)
    turned = cv2.warpAffine(image, umeyama(mirrored, TEMPLATE), (112, 112)).transpose(2, 0, 1)
    np.testing.assert_allclose(faces.read(1).astype(int), turned.astype(int), atol=1)
    assert_refused("mirrored", estimate, mirrored)
    messages = "gone.png cannot be read: No such", "b.png: the image", "1.png: its five points lie"
    for number, message in enumerate(messages, 2):
        assert_refused(message, faces.read, number)
