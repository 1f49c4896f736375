"""Templates: several images and videos of one person, as one vector.

As in InsightFace's evaluations, and in Whitelam et al. 2017 (IARPA Janus Benchmark-B) with averages
over the frames of a video: the features of the faces of one media (an image, or the frames of a
video) are averaged, the averages of a template's media are added, and the sum gets the length 1.
A face of which the detector is not sure, or whose features are short, counts less.

InsightFace's programs differ in the features of a face, the sum of those of its views (the image
and its mirror image). ``ijb.py`` of Partial FC gives each view the length 1 before, so that a face
counts by how much its views agree; ``ijb_11.py`` and ``ijb_evals.py`` add them as they are, so that
it counts by their lengths, too.

Features come in parts, because those of 469,375 faces are 1 GB.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from evaluation.features import normalized
from evaluation.folds import Features
from evaluation.ijb.lists import Faces


def template_features(
    parts: Iterable[Features],
    faces: Faces,
    *,
    unit_views: bool,
    detector_score: bool = True,
    norm_score: bool = True,
) -> NDArray[np.float64]:
    """Return the vector of each template, float64 [T, D], of length 1; zeros stay zeros.

    Args:
        parts: the features [views, b, D] of all faces, in their order.
        faces: which belong together.
        unit_views: whether each view gets the length 1 before they are added.
        detector_score: whether the features of a face are multiplied by the detector's score
            (InsightFace's ``use_detector_score``).
        norm_score: whether they keep their length, otherwise they get the length 1 before
            (``use_norm_score``).
    """
    both = np.stack([faces.templates, faces.media])
    _, place, counts = np.unique(both, axis=1, return_inverse=True, return_counts=True)
    weights = 1 / counts[place.ravel()]
    if detector_score:
        weights *= faces.scores
    sums = np.zeros((len(faces.template_ids), 0))
    start = 0
    for part in parts:
        views = part.astype(np.float64)
        rows = (normalized(views) if unit_views else views).sum(axis=0)
        if not norm_score:
            rows = normalized(rows)
        if not sums.size:
            sums = np.zeros((len(sums), rows.shape[1]))
        stop = start + len(rows)
        rows *= weights[start:stop, np.newaxis]
        _add_rows(sums, faces.templates[start:stop], rows)
        start = stop
    assert start == len(faces.names), (start, len(faces.names))
    return normalized(sums)


def _add_rows(
    sums: NDArray[np.float64], places: NDArray[np.int64], rows: NDArray[np.float64]
) -> None:
    """Add each row [b, D] to the sum at its place; several may have the same one."""
    order = np.argsort(places, kind="stable")
    begins = np.flatnonzero(np.diff(places[order], prepend=-1))
    sums[places[order][begins]] += np.add.reduceat(rows[order], begins, axis=0)
