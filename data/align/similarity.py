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

LARGEST_MISFIT = 0.64
"""The largest ``misfit`` of a face; a person's is about 0.12.

Of 9,755 faces of LFW, as MTCNN finds their points, 0.1 % have more than 0.32, and the largest has
0.48. A face that is turned by 60 degrees has 0.37, by 80 degrees 0.58. Points in another order, or
shifted by a number that stands before them, have 0.62 to 1.
"""

# In pixels, the root of the sum of squared distances from the middle. Coordinates that are
# fractions of an image's sides have at most 1.6.
_SMALLEST_FACE = 2.0


def estimate(points: FivePoints, *, any_order: bool = False) -> NDArray[np.float64]:
    """Return the similarity transform from points to the template, float64 ``[2, 3]``.

    It has the least sum of squared distances, as that of Umeyama (Least-squares estimation of
    transformation parameters between two point patterns, PAMI 1991, eq. 39 to 43), which
    scikit-image's ``SimilarityTransform.estimate`` computes. In a plane, with rotation and scale as
    one complex factor, the minimum is a quotient of two sums.

    Args:
        points: of the face, finite.
        any_order: take points, too, that are not those of a face seen from the front. In a list
            that belongs to a protocol they are those of a face in profile.

    Raises:
        DataError: the points lie in one place, or are not those of a face: they fit the template's
            mirror image better, or neither.
    """
    source_mean, target_mean = points.mean(axis=0), TEMPLATE.mean(axis=0)
    x, y = (points - source_mean).T
    u, v = (TEMPLATE - target_mean).T
    spread = float(x @ x + y @ y)
    if spread < _SMALLEST_FACE**2:
        raise DataError(
            "its five points lie within two pixels; they have to be in pixels, not in fractions of "
            "the image's sides"
        )
    left = misfit(points)
    if left > LARGEST_MISFIT and not any_order:
        problem = "a mirrored face" if np.isinf(left) else "no face"
        raise DataError(
            f"its points are those of {problem}: the order is left eye, right eye, nose, left and "
            "right corner of the mouth, as seen in the image"
        )
    cosine, sine = (x @ u + y @ v) / spread, (x @ v - y @ u) / spread
    rotation = np.array([[cosine, -sine], [sine, cosine]])
    return np.column_stack([rotation, target_mean - rotation @ source_mean])


def misfit(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far points are from the template's after the best transform, as a share.

    It is the root of the share of their squared distances from their middle that remains: 0 for the
    template in any place, size and rotation, 1 for points that have nothing in common with it.

    Args:
        points: of faces, ``[..., 5, 2]``.

    Returns:
        ``[...]``; infinite where the template's mirror image fits better.
    """
    axes = np.array([1, 1j])
    found = (points - points.mean(axis=-2, keepdims=True)) @ axes
    wanted = (TEMPLATE - TEMPLATE.mean(axis=0)) @ axes
    size = np.linalg.norm(found, axis=-1) * np.linalg.norm(wanted)
    direct, mirrored = np.abs(found @ wanted.conj()), np.abs(found @ wanted)
    shares = 1 - np.square(direct / np.maximum(size, np.finfo(float).tiny))
    return np.where(mirrored > direct, np.inf, np.sqrt(np.maximum(shares, 0)))


def is_no_face(points: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for faces ``[n, 5, 2]`` whether their numbers hardly are x and y of a face's points.

    For some faces they are not, such as those in profile; for most of a list, its columns are
    others. Lists with five x before five y are among these: read as pairs, they often look like a
    face.
    """
    found = misfit(points)
    separate = points.reshape(-1, 2, 5).transpose(0, 2, 1)
    wrong: NDArray[np.bool_] = (found > LARGEST_MISFIT) | (misfit(separate) < found)
    return wrong


def align(image: Image, points: FivePoints, *, any_order: bool = False) -> Image:
    """Return the face with these points, uint8 ``[112, 112, 3]``; black beyond the image.

    ``image`` is uint8 ``[height, width, 3]``. Bilinear without a filter, as everywhere, also where
    a large face shrinks. ``any_order`` is that of ``estimate``.

    Raises:
        DataError: the points determine no transform, are not those of a face, or their middle lies
            outside of the image.
    """
    matrix = estimate(points, any_order=any_order)
    height, width = image.shape[:2]
    middle = points.mean(axis=0)
    if not any_order and not ((middle >= 0) & (middle <= (width, height))).all():
        raise DataError(
            f"its points lie outside of its {height} x {width} pixels; they are those of another "
            "image, or of another size of it"
        )
    aligned: Image = cv2.warpAffine(image, matrix, (SIDE, SIDE), flags=cv2.INTER_LINEAR)
    return aligned
