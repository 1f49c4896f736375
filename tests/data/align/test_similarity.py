from __future__ import annotations

import math

import cv2
import numpy as np
import pytest

from data.align.similarity import SIDE, TEMPLATE, align, estimate, misfit
from data.drawn.faces import draw_person, draw_view, render
from runtime.errors import DataError
from tests.support.drawn_points import five_points

SIZE = (240, 240)


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


def turned(points: np.ndarray, angle: float, scale: float, shift: np.ndarray) -> np.ndarray:
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    return scale * points @ np.array([[cosine, sine], [-sine, cosine]]) + shift


def apply(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    return points @ matrix[:, :2].T + matrix[:, 2]


@pytest.mark.parametrize("seed", range(20))
def test_the_transform_is_umeyamas(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = turned(TEMPLATE, rng.uniform(-180, 180), rng.uniform(0.05, 20), rng.normal(0, 900, 2))
    points += rng.normal(0, 0.05 * np.ptp(points), (5, 2))
    found = estimate(points, any_order=True)
    assert found == pytest.approx(umeyama(points, TEMPLATE), rel=1e-9, abs=1e-9)
    # OpenCV's only fit of this kind is RANSAC's; with so wide a threshold all points are inliers.
    theirs, inliers = cv2.estimateAffinePartial2D(
        points, TEMPLATE, method=cv2.RANSAC, ransacReprojThreshold=1e6, refineIters=200
    )
    assert inliers.all()
    assert apply(found, points) == pytest.approx(apply(theirs, points), abs=0.05)


def test_the_template_is_the_published_one() -> None:
    """SphereFace's, for 112 x 96, with 8 more in x; its points stay where they are."""
    published = [
        [30.2946, 51.6963], [65.5318, 51.5014], [48.0252, 71.7366], [33.5493, 92.3655],
        [62.7299, 92.2041],
    ]  # fmt: skip
    assert np.array(published) + [8, 0] == pytest.approx(TEMPLATE, abs=1e-12)
    assert estimate(TEMPLATE) == pytest.approx(np.array([[1, 0, 0], [0, 1, 0]]), abs=1e-12)
    image = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    assert (align(image, TEMPLATE) == image).all()


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (np.full((5, 2), 31.0), "in one place"),
        (np.full((5, 2), 1e6) + np.arange(10).reshape(5, 2) * 1e-4, "in one place"),
        (TEMPLATE * [math.nan, 1], "not finite"),
        (TEMPLATE[[1, 0, 2, 4, 3]], "mirrored face: the order is left eye, right eye"),
        (TEMPLATE * [-1, 1], "mirrored face"),
        (TEMPLATE[[0, 1, 2, 4, 3]], "no face: the order is left eye"),
        (TEMPLATE[[0, 1, 3, 4, 2]], "no face"),
        (TEMPLATE / 112, "lie within two pixels; they have to be in pixels"),
    ],
)
def test_points_without_a_transform_are_refused(points: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        estimate(points)


@pytest.mark.parametrize(
    ("yaw", "pitch", "expected"), [(0, 0, 0.071), (60, 0, 0.371), (60, 30, 0.486), (80, 0, 0.577)]
)
def test_turned_heads_are_faces(yaw: float, pitch: float, expected: float) -> None:
    """Eyes, nose and corners of the mouth of a head, in millimeters, seen from afar."""
    head = np.array([[-31, 0, 0], [31, 0, 0], [0, 33, 30], [-25, 62, 8], [25, 62, 8]], float)
    (s, c), (t, d) = ((math.sin(a), math.cos(a)) for a in np.radians([yaw, pitch]))
    turned_head = head @ np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]]).T
    seen = (turned_head @ np.array([[1, 0, 0], [0, d, -t], [0, t, d]]).T)[:, :2]
    assert misfit(seen) == pytest.approx(expected, abs=1e-3)
    assert estimate(seen + 100).shape == (2, 3)


def test_the_misfit_is_the_share_that_a_transform_leaves() -> None:
    rng = np.random.default_rng(5)
    points = turned(TEMPLATE + rng.normal(0, 6, (7, 5, 2)), 30, 2.0, rng.normal(0, 50, 2))
    for face, found in zip(points, misfit(points)):
        # The other way round: what remains of the template.
        left = apply(umeyama(face, TEMPLATE), face) - TEMPLATE
        spread = np.square(TEMPLATE - TEMPLATE.mean(axis=0)).sum()
        assert found == pytest.approx(math.sqrt(np.square(left).sum() / spread), rel=1e-9)
        assert misfit(face) == pytest.approx(found)
    assert np.isinf(misfit(TEMPLATE[[1, 0, 2, 4, 3]])) and misfit(TEMPLATE) < 1e-7


def test_points_of_another_size_are_refused() -> None:
    image = np.zeros((SIDE, SIDE, 3), np.uint8)
    for shift in ([120, 0], [0, -100]):
        with pytest.raises(DataError, match="its points lie outside of its 112 x 112 pixels"):
            align(image, TEMPLATE + shift)
        align(image, TEMPLATE + shift, any_order=True)
    # Some of them lie in an image of half the size.
    with pytest.raises(DataError, match="its points lie outside of its 56 x 56 pixels"):
        align(image[:56, :56], TEMPLATE)


def test_what_lies_beyond_the_image_is_black() -> None:
    white = np.full((SIDE, SIDE, 3), 255, np.uint8)
    aligned = align(white, TEMPLATE + [50, 0])
    assert (aligned[:, :60] == 255).all() and (aligned[:, 64:] == 0).all()


def displacement(reference: np.ndarray, image: np.ndarray) -> float:
    """How far the template's points are apart in two images, at most, measured by their pixels.

    The image is registered to the reference by the correlation of its pixels (ECC), without their
    slow changes, which the light makes.
    """
    grays = [cv2.cvtColor(i, cv2.COLOR_RGB2GRAY).astype(np.float32) for i in (reference, image)]
    grays = [gray - cv2.GaussianBlur(gray, (0, 0), 8) for gray in grays]
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[36:104, 24:88] = 255
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 300, 1e-6)
    _, matrix = cv2.findTransformECC(
        grays[0], grays[1], np.eye(2, 3, dtype=np.float32), cv2.MOTION_AFFINE, criteria, mask, 5
    )
    return float(np.linalg.norm(apply(matrix, TEMPLATE) - TEMPLATE, axis=1).max())


@pytest.mark.parametrize("number", range(4))
def test_drawn_faces_turned_by_known_angles_come_back(number: int) -> None:
    """Turned as pixels; and drawn anew, where background and light stay and the head turns."""
    person = draw_person(np.random.default_rng((0, number)))
    view = draw_view(np.random.default_rng((1, number)))
    # Small enough that no angle turns a part of the face out of the image.
    view = view._replace(yaw=0.0, pitch=0.0, roll=0.0, scale=0.8, shift=np.zeros(2))
    image = render(person, view, SIZE, np.random.default_rng(number))
    points = five_points(person, view, SIZE)
    upright = align(image, points)
    middle = (SIZE[1] / 2, SIZE[0] / 2)
    for angle, scale in ((-90, 0.7), (-45, 1.0), (-20, 1.3), (7, 1.0), (120, 0.7), (180, 1.3)):
        matrix = cv2.getRotationMatrix2D(middle, angle, scale)
        found = align(cv2.warpAffine(image, matrix, SIZE[::-1]), apply(matrix, points))
        assert displacement(upright, found) < 1, (angle, scale)
        rolled = view._replace(roll=math.radians(angle / 2))
        drawn = render(person, rolled, SIZE, np.random.default_rng(number))
        found = align(drawn, five_points(person, rolled, SIZE))
        assert displacement(upright, found) < 1, angle
    # The measure itself: two pixels are seen as such.
    assert displacement(upright, align(image, points + 2.0)) > 1.2
