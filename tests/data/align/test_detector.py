from __future__ import annotations

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from data.align.detector import Detector, Search, remove_overlapping
from data.align.outputs import Faces
from data.align.similarity import align
from data.drawn.faces import draw_person, draw_view, render
from runtime.errors import ConfigError, DataError
from tests.data.align.test_similarity import displacement
from tests.support.detectors import (
    FORMS,
    Planted,
    planted,
    write_detector,
    write_identity,
    write_looking_detector,
)
from tests.support.drawn_points import five_points

SHAPE = np.array([[-20, -15], [20, -15], [0, 5], [-14, 22], [14, 22]], float)
BLANK = np.zeros((320, 320, 3), np.uint8)


def detector_of(folder: Path, form: str, face: Planted) -> Detector:
    return Detector(write_detector(folder / "d.onnx", form, [face]), Search())


@pytest.mark.parametrize(("form", "angle"), [*zip(FORMS, (-60, 35, 90, 35)), (FORMS[0], 0)])
def test_drawn_faces_turned_by_known_angles_come_back(form: str, angle: int, tmp_path) -> None:
    """From a larger image, whose points a detector finds in its own smaller input."""
    person = draw_person(np.random.default_rng((0, 1)))
    upright = draw_view(np.random.default_rng((1, 1)))._replace(
        yaw=0.0, pitch=0.0, roll=0.0, scale=0.8, shift=np.zeros(2)
    )
    size = (360, 480)
    faces = []
    for view in (upright, upright._replace(roll=math.radians(angle))):
        image = render(person, view, size, np.random.default_rng(2))
        # The detector's input is 320 x 320: a scale of two thirds, and black below.
        face = planted(five_points(person, view, size) * 320 / 480)
        faces.append(align(image, detector_of(tmp_path, form, face).find("a.jpg", image)))
    assert displacement(*faces) < 1


@pytest.mark.parametrize(("form", "looks_at", "rgb"), [
    ("scrfd", (0, 40, 100), (255, 0, 0)),
    ("scrfd batched", (2, 40, 100), (0, 0, 255)),
    ("maps", (1, 40, 100), (0, 1, 0)),
    ("tables", (2, 40, 100), (124, 0, 0)),
])  # fmt: skip
def test_the_input_is_what_the_detector_was_trained_with(form, looks_at, rgb, tmp_path) -> None:
    """Its scores are multiplied by one number of its input, which is near 1 if all is right."""
    face = planted(SHAPE + [160, 80])
    path = write_looking_detector(tmp_path / "d.onnx", form, face, 320, looks_at)
    detector = Detector(path, Search())
    image = np.zeros((240, 640, 3), np.uint8)
    # An area that is around (100, 40) in an input of half the size.
    image[70:90, 190:210] = rgb
    assert detector.find("a.jpg", image) == pytest.approx(face.points * 2, abs=1e-2)
    image[70:90, 190:210] = 0
    with pytest.raises(DataError, match=r"no face has a score of 0\.5 or more"):
        detector.find("a.jpg", image)


def test_images_of_other_sizes(tmp_path: Path) -> None:
    face = planted(SHAPE + [100, 150])
    detector = detector_of(tmp_path, "scrfd", face)
    assert detector.find("a.jpg", BLANK[:80, :80]) == pytest.approx(face.points / 4, abs=1e-3)
    # A line of pixels is still an image.
    detector.find("a.jpg", np.zeros((1, 4000, 3), np.uint8))
    # Of 100 x 333 pixels, 96 x 320 become: the height is rounded down to 96 from 96.1.
    face = planted(SHAPE + [160, 48])
    points = detector_of(tmp_path, "scrfd", face).find("a.jpg", np.zeros((100, 333, 3), np.uint8))
    assert points == pytest.approx(face.points * [333 / 320, 100 / 96], abs=1e-3)
    # A detector of any size gets the size asked for.
    face = planted(SHAPE + [60, 60])
    path = write_detector(tmp_path / "d.onnx", "scrfd", [face], side=128, dynamic=True)
    points = Detector(path, Search(side=128)).find("a.jpg", BLANK[:256, :256])
    assert points == pytest.approx(face.points * 2, abs=1e-3)
    with pytest.raises(DataError, match=r"d\.onnx is no face detector .* have the shape"):
        Detector(path, Search(side=160))


def test_one_of_several_faces(tmp_path: Path) -> None:
    """In an image of twice the detector's input, where the rule counts the image's pixels."""
    middle = planted(0.8 * SHAPE + [150, 160], 0.6)
    large = planted(1.2 * SHAPE + [60, 70], 0.7)
    path = write_detector(tmp_path / "d.onnx", "scrfd", [middle, large])
    image = np.zeros((640, 640, 3), np.uint8)

    def chosen(choice: str) -> np.ndarray:
        return Detector(path, Search(choice)).find("a.jpg", image) / 2

    assert chosen("largest") == pytest.approx(large.points, abs=1e-2)
    assert chosen("central") == pytest.approx(middle.points, abs=1e-2)
    with pytest.raises(DataError, match="shows 2 faces; --face central or largest"):
        chosen("only")
    only = Detector(path, Search("only", min_score=0.65)).find("a.jpg", image) / 2
    assert only == pytest.approx(large.points, abs=1e-2)


def test_central_is_area_minus_twice_the_squared_distance(tmp_path: Path) -> None:
    """The first has 100 x 100, the second 100 x 90 pixels: 1,000 more, worth a distance of 22.4."""
    for distance, wanted in ((22.0, 0), (22.7, 1)):
        faces = []
        for width, middle in ((100.0, 160 - distance), (90.0, 160.0)):
            points = SHAPE + [middle, 160]
            box = np.array([middle - width / 2, 110, middle + width / 2, 210])
            faces.append(Planted(points, box))
        detector = Detector.__new__(Detector)
        detector._search = Search()
        found = Faces(
            np.array([0.9, 0.9], np.float32),
            np.array([face.box for face in faces], np.float32),
            np.array([face.points for face in faces], np.float32),
        )
        assert detector._choose(found, (320, 320)) == wanted


def test_overlapping_faces_are_one() -> None:
    """Against the definition, in a loop; NaN is no face."""
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 100, (60, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(10, 60, (60, 2))], 1).astype(np.float32)
    scores = rng.permutation(np.linspace(0.5, 1, 60)).astype(np.float32)
    points = rng.uniform(0, 100, (60, 5, 2)).astype(np.float32)
    boxes[5, 2] = np.nan
    points[7, 3, 1] = np.inf
    kept: list[int] = []
    for i in np.argsort(-scores):
        if i in (5, 7):
            continue
        x1, y1, x2, y2 = boxes[i].astype(float)
        for j in kept:
            u1, v1, u2, v2 = boxes[j].astype(float)
            inner = max(0, min(x2, u2) - max(x1, u1)) * max(0, min(y2, v2) - max(y1, v1))
            if inner / ((x2 - x1) * (y2 - y1) + (u2 - u1) * (v2 - v1) - inner) > 0.4:
                break
        else:
            kept.append(int(i))
    found = remove_overlapping(Faces(scores, boxes, points))
    assert 5 < len(kept) < 50
    assert (found.scores == scores[kept]).all() and (found.boxes == boxes[kept]).all()
    assert (found.points == points[kept]).all()
    empty = remove_overlapping(Faces(scores[:0], boxes[:0], points[:0]))
    assert len(empty.scores) == 0


def test_threads_find_what_one_finds(tmp_path: Path) -> None:
    detector = detector_of(tmp_path, "maps", planted(SHAPE + [160, 80]))
    images = [np.zeros((100 + 10 * n, 200, 3), np.uint8) for n in range(12)]
    alone = [detector.find("a.jpg", image) for image in images]
    with ThreadPoolExecutor(3) as pool:
        together = pool.map(lambda image: detector.find("a.jpg", image), images)
        assert all((one == other).all() for one, other in zip(alone, together))


@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        ("float", [1, 3, 64, 64], "is no face detector that is known: its 1 outputs"),
        ("float", [1, 1, 64, 64], r"takes tensor\(float\) \[1, 1, 64, 64\] instead"),
        ("float", [1, 3], "instead of float32"),
        ("uint8", [1, 3, 64, 64], r"takes tensor\(uint8\)"),
        ("string", [1, 3, 64, 64], "an output of the detector is no tensor of floats"),
        ("sequence", [1, 3, 64, 64], "an output of the detector is no tensor of floats"),
        ("float", [1, 3, 100, 64], "100 x 64, which are not multiples of 32"),
    ],
)
def test_other_networks_are_refused(kind, shape, message: str, tmp_path: Path) -> None:
    path = write_identity(tmp_path / "other.onnx", kind, shape)
    with pytest.raises(DataError, match=message) as caught:
        Detector(path, Search())
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_broken_files_and_a_missing_package_are_one_line(monkeypatch, tmp_path: Path) -> None:
    path = write_detector(tmp_path / "d.onnx", "tables", [planted(SHAPE + 90)])
    for content, message in (
        (path.read_bytes()[:-5000], "is refused as an ONNX model|no face detector"),
        (b"", "is refused as an ONNX model: ONNX Runtime refuses it"),
        (b"junk" * 100, "is refused as an ONNX model: it is no protobuf message"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            Detector(path, Search())
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="No such file or directory.; name an ONNX file"):
        Detector(tmp_path / "none.onnx", Search())
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match="the package onnxruntime cannot be imported.*make env"):
        Detector(path, Search())
