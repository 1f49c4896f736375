from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.align.similarity import SIDE, TEMPLATE, align, estimate, misfit
from tests.support.sets import assert_refused


def umeyama(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The transform of Umeyama's paper, eq. 39 to 43, in float64: ``[2, 3]``."""
    count, dim = source.shape
    source_mean, target_mean = source.mean(0), target.mean(0)
    covariance = (target - target_mean).T @ (source - source_mean) / count
    left, values, right = np.linalg.svd(covariance)
    signs = np.ones(dim)
    if np.linalg.det(covariance) < 0:
        signs[-1] = -1
    rotation = left @ np.diag(signs) @ right
    scale = (values @ signs) / (source - source_mean).var(0).sum()
    return np.column_stack([scale * rotation, target_mean - scale * rotation @ source_mean])


def apply(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    return points @ matrix[:, :2].T + matrix[:, 2]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_transform_is_umeyamas_and_the_misfit_what_it_leaves(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = cv2.getRotationMatrix2D((0, 0), rng.uniform(-180, 180), rng.uniform(0.05, 20))
    points = apply(matrix, TEMPLATE) + rng.normal(0, 900, 2)
    points += rng.normal(0, 0.05 * np.ptp(points, axis=0).max(), (5, 2))
    expected = umeyama(points, TEMPLATE)
    assert estimate(points, any_order=True) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    left = np.square(apply(expected, points) - TEMPLATE).sum()
    spread = np.square(TEMPLATE - TEMPLATE.mean(axis=0)).sum()
    both = misfit(np.stack([points, points[[1, 0, 2, 4, 3]]]))
    assert both == pytest.approx([math.sqrt(left / spread), math.inf], rel=1e-9)


def test_the_template_is_the_published_one() -> None:
    """SphereFace's, for 112 x 96, with 8 more in x; its points stay where they are."""
    x = np.array([30.2946, 65.5318, 48.0252, 33.5493, 62.7299])
    y = np.array([51.6963, 51.5014, 71.7366, 92.3655, 92.2041])
    assert np.stack([x + 8, y], axis=1) == pytest.approx(TEMPLATE, abs=1e-12)
    assert estimate(TEMPLATE) == pytest.approx(np.array([[1, 0, 0], [0, 1, 0]]), abs=1e-12)
    image = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    assert (align(image, TEMPLATE) == image).all()
    white = np.full((SIDE, SIDE, 3), 255, np.uint8)
    aligned = align(white, TEMPLATE + [50, 0])
    assert (aligned[:, :60] == 255).all() and (aligned[:, 64:] == 0).all()


# The root of the sum of its squared distances from the middle is 1.
SHAPE = (TEMPLATE - TEMPLATE.mean(axis=0)) / np.linalg.norm(TEMPLATE - TEMPLATE.mean(axis=0))


@pytest.mark.parametrize(("points", "message"), [
    (np.full((5, 2), 31.0), "in one place"),
    (np.full((5, 2), 1e6) + np.arange(10).reshape(5, 2) * 1e-4, "in one place"),
    (TEMPLATE * [math.nan, 1], "not finite"),
    (TEMPLATE[[1, 0, 2, 4, 3]], "mirrored face: the order is left eye, right eye"),
    (TEMPLATE * [-1, 1], "mirrored face"),
    (TEMPLATE[[0, 1, 2, 4, 3]], "no face: the order is left eye"),
    (1.99 * SHAPE + 50, "lie within two pixels; they have to be in pixels"),
    (TEMPLATE + [120, 0], "its points lie outside of its 112 x 112 pixels"),
    (TEMPLATE - [0, 100], "its points lie outside of its 112 x 112 pixels"),
])  # fmt: skip
def test_points_that_are_not_of_this_face_are_refused(points: np.ndarray, message: str) -> None:
    image = np.zeros((SIDE, SIDE, 3), np.uint8)
    assert_refused(message, align, image, points)
    if "lie outside" in message:
        assert align(image, points, any_order=True).shape == image.shape
    assert align(image, 2.01 * SHAPE + 50).shape == image.shape
