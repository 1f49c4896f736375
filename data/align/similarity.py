"""The transform that brings a face's five points to the places where networks expect them.

A network for faces has learned where eyes, nose and mouth are in its images, and every published
set and verification set is cut in the same way: a similarity transform (rotation, one scale, shift)
fitted to five points, and bilinear interpolation into 112 x 112 pixels. A face that is cut in
another way is recognized worse, so nothing here can be set.

Coordinates are OpenCV's: x to the right, y down, the center of the first pixel is (0, 0). *Left*
and *right* are those of the image, not of the person.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from data.decoding import Image
from runtime.errors import DataError

FivePoints = NDArray[np.float64]
"""Left eye, right eye, nose, left and right corner of the mouth: x and y, ``[5, 2]``."""

SIDE = 112
"""Height and width of an aligned image."""

TEMPLATE: FivePoints = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655],
     [70.7299, 92.2041]]
)  # fmt: skip
"""Where the five points go to (InsightFace's ``arcface_src``; SphereFace's, 8 pixels wider)."""

# The smallest distance between points, as a fraction of an image's side, is far above this.
_SMALLEST_SPREAD = 1e-6


def estimate(points: FivePoints, *, any_order: bool = False) -> NDArray[np.float64]:
    """Return the similarity transform from points to the template, float64 ``[2, 3]``.

    It has the least sum of squared distances, as that of Umeyama (Least-squares estimation of
    transformation parameters between two point patterns, PAMI 1991, eq. 39 to 43), which
    scikit-image's ``SimilarityTransform.estimate`` computes. In a plane, with rotation and scale as
    one complex factor, the minimum is a quotient of two sums.

    Args:
        points: of the face.
        any_order: take points, too, that fit the template's mirror image better. In a list that
            comes from a detector they are those of a face in profile.

    Raises:
        DataError: the points are not finite, lie in one place, or fit the template's mirror image
            better, because left and right are exchanged.
    """
    if not np.isfinite(points).all():
        raise DataError("its points are not finite numbers")
    source_mean, target_mean = points.mean(axis=0), TEMPLATE.mean(axis=0)
    x, y = (points - source_mean).T
    u, v = (TEMPLATE - target_mean).T
    spread = float(x @ x + y @ y)
    if spread <= _SMALLEST_SPREAD * max(1.0, float(np.square(source_mean).sum())):
        raise DataError("its five points lie in one place")
    # The determinant of the covariance is negative if a reflection fits better than a rotation.
    if not any_order and (x @ u) * (y @ v) < (x @ v) * (y @ u):
        raise DataError(
            "its points are those of a mirrored face: the order is left eye, right eye, nose, left "
            "and right corner of the mouth, as seen in the image"
        )
    cosine, sine = (x @ u + y @ v) / spread, (x @ v - y @ u) / spread
    rotation = np.array([[cosine, -sine], [sine, cosine]])
    return np.column_stack([rotation, target_mean - rotation @ source_mean])


def align(image: Image, points: FivePoints, *, any_order: bool = False) -> Image:
    """Return the face with these points, uint8 ``[112, 112, 3]``; black beyond the image.

    ``image`` is uint8 ``[height, width, 3]``. Bilinear without a filter, as everywhere, also where
    a large face shrinks. ``any_order`` is that of ``estimate``.

    Raises:
        DataError: the points determine no transform.
    """
    matrix = estimate(points, any_order=any_order)
    aligned: Image = cv2.warpAffine(image, matrix, (SIDE, SIDE), flags=cv2.INTER_LINEAR)
    return aligned
