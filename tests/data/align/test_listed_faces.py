from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from data.align.listed_faces import ListedFaces
from data.align.similarity import TEMPLATE, align, estimate, is_no_face
from runtime.errors import DataError
from tests.data.align.test_similarity import umeyama

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


def test_faces_whose_points_are_of_other_columns_are_counted() -> None:
    """With a number before the points, or five x before five y; a person in profile is one more."""
    rng = np.random.default_rng(0)
    flat = (TEMPLATE + rng.normal(0, 3, (40, 5, 2))).reshape(40, 10)
    scores = rng.uniform(0.5, 1, (40, 1))
    for columns, wrong in (
        (flat, 0),
        (np.hstack([scores, flat[:, :9]]), 40),
        (np.hstack([flat[:, ::2], flat[:, 1::2]]), 40),
        (np.vstack([flat[1:], MIRRORED.reshape(1, 10)]), 1),
    ):
        assert is_no_face(columns.reshape(-1, 5, 2)).sum() == wrong
