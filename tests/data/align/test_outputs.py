from __future__ import annotations

import numpy as np
import pytest

from data.align.outputs import RetinaFaceMaps, RetinaFaceTables, Scrfd, form_of
from runtime.errors import DataError
from tests.support.detectors import FORMS, outputs_of, planted

FORM_OF = dict(zip(FORMS, (Scrfd, Scrfd, RetinaFaceMaps, RetinaFaceTables)))
SHAPE = np.array([[-20, -15], [20, -15], [0, 5], [-14, 22], [14, 22]], float)


@pytest.mark.parametrize("form", FORMS)
def test_planted_faces_are_decoded(form: str) -> None:
    """One at each stride, and both anchors of a place."""
    faces = [
        planted(SHAPE + [60.3, 50.7], 0.9),
        planted(2.1 * SHAPE + [200, 90.2], 0.8),
        planted(3 * SHAPE + [120, 230], 0.7),
        planted(0.5 * SHAPE + [280, 290.5], 0.6),
    ]
    outputs = outputs_of(form, faces, 320)
    decoder = form_of([output.ndim for output in outputs])
    assert type(decoder) is FORM_OF[form]
    found = decoder.decode(outputs, (320, 320), 0.55)
    assert len(found.scores) == 4
    for number in np.argsort(-found.scores):
        face = faces[int(round((0.9 - found.scores[number]) * 10))]
        assert found.scores[number] == pytest.approx(face.score, abs=1e-6)
        assert found.boxes[number] == pytest.approx(face.box, abs=1e-3)
        assert found.points[number] == pytest.approx(face.points, abs=1e-3)
    assert len(decoder.decode(outputs, (320, 320), 0.75).scores) == 2
    # The order of the outputs does not matter: the shapes tell them apart.
    shuffled = decoder.decode(outputs[::-1], (320, 320), 0.55)
    assert sorted(shuffled.scores) == sorted(found.scores)
    with pytest.raises(DataError, match=r"0 of the detector's outputs have the shape \["):
        decoder.decode(outputs, (320, 352), 0.55)


def test_scrfd_by_hand() -> None:
    """Stride 16, an input of 32 x 64: the second anchor in row 1, column 2 has its center there."""
    outputs = [
        np.zeros((32 * 64 // stride**2 * 2, channels), np.float32)
        for channels in (1, 4, 10)
        for stride in (8, 16, 32)
    ]
    row = (1 * 4 + 2) * 2 + 1
    outputs[1][row] = 0.75
    outputs[4][row] = [1, 0.5, 2, 0.25]
    outputs[7][row] = [0.5, -0.5] * 5
    found = Scrfd().decode(outputs, (32, 64), 0.5)
    assert found.scores.tolist() == [0.75]
    assert found.boxes.tolist() == [[32 - 16, 16 - 8, 32 + 32, 16 + 4]]
    assert found.points.tolist() == [[[32 + 8, 16 - 8]] * 5]


def test_retinaface_maps_by_hand() -> None:
    """Stride 32: anchors of 512 and 256 pixels, centered at 7.5 + 32 · place."""
    outputs = [
        np.zeros((1, channels, 64 // stride, 96 // stride), np.float32)
        for stride in (32, 16, 8)
        for channels in (4, 8, 20)
    ]
    classes, boxes, points = outputs[:3]
    # Of the background, which is no face.
    classes[0, :2] = 0.99
    classes[0, 3, 1, 2] = 0.75
    boxes[0, 4:8, 1, 2] = [0.5, -0.25, np.log(0.5), np.log(0.25)]
    points[0, 10:20, 1, 2] = [0.125, 0.25] * 5
    found = RetinaFaceMaps().decode(outputs, (64, 96), 0.5)
    x, y = 7.5 + 64 + 128, 7.5 + 32 - 64
    assert found.scores.tolist() == [0.75]
    assert found.boxes[0] == pytest.approx([x - 63.5, y - 31.5, x + 63.5, y + 31.5], abs=1e-4)
    assert found.points.tolist() == [[[7.5 + 64 + 32, 7.5 + 32 + 64]] * 5]


def test_retinaface_tables_by_hand() -> None:
    """The first anchor of stride 16 in row 0, column 1: 64 pixels around (24, 8)."""
    count = 2 * (4 * 8 + 2 * 4 + 1 * 2)
    boxes, classes, points = (np.zeros((1, count, n), np.float32) for n in (4, 2, 10))
    classes[0, :, 0] = 1
    row = 2 * 4 * 8 + 2 * 1
    classes[0, row] = 0.25, 0.75
    boxes[0, row] = [1, -1, 5 * np.log(0.5), 0]
    points[0, row] = [2, 1] * 5
    found = RetinaFaceTables().decode([boxes, classes, points], (32, 64), 0.5)
    x, y = 24 + 6.4, 8 - 6.4
    assert found.scores.tolist() == [0.75]
    assert found.boxes[0] == pytest.approx([x - 16, y - 32, x + 16, y + 32], abs=1e-4)
    assert found.points[0] == pytest.approx(np.array([[24 + 12.8, 8 + 6.4]] * 5), abs=1e-4)


def test_pixels_are_those_of_each_form() -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    image[..., 0], image[..., 1], image[..., 2] = 10, 127, 200
    assert Scrfd().normalize(image).shape == (1, 3, 32, 32)
    assert Scrfd().normalize(image)[0, :, 0, 0] * 128 == pytest.approx([-117.5, -0.5, 72.5])
    assert RetinaFaceMaps().normalize(image)[0, :, 0, 0].tolist() == [10, 127, 200]
    blue_first = RetinaFaceTables().normalize(image)[0, :, 0, 0]
    assert blue_first.tolist() == [200 - 104, 127 - 117, 10 - 123]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([2] * 6, "6 outputs .* finds faces without points: take the file with _kps"),
        ([4] * 8, "8 outputs are neither the nine of SCRFD"),
        ([2, 2, 2, 4, 4, 4, 4, 4, 4], "9 outputs"),
        ([], "0 outputs"),
    ],
)
def test_other_outputs_are_refused(ranks: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        form_of(ranks)
