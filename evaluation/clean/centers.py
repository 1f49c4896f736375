"""The center of each class, from the images that agree, and how near each image is to it.

The mean of a class that has wrong images is drawn to them, and in a class of three images one of
them moves it by a third. So a center is the mean of a class's *core*: the image with which most
others agree, and all that agree with the mean of the core without themselves. An image is judged by
the core without it: otherwise each would agree with itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluation.clean.faces import EmbeddedFaces, Numbers, Rows, unit_rows

# All pairs of the images of a class are compared up to this number, of larger ones all pairs of so
# many images at equal distances: 64 MiB of cosines.
_LARGEST = 4096
_ROUNDS = 5


class Centers(NamedTuple):
    """Of all classes.

    Attributes:
        centers: float32 [C, D], of length 1; zeros for a class without images, and for one in
            which no two images agree: nobody knows whom it shows.
        own: float32 [n], the cosine of an image with its class's core without it. In a class in
            which no two images agree, the largest cosine with another image of the class; not a
            number for an image that is alone, or in no class.
        in_core: bool [n]. A class without agreement has no core.
    """

    centers: Rows
    own: NDArray[np.float32]
    in_core: NDArray[np.bool_]


def find_centers(faces: EmbeddedFaces, agree: float) -> Centers:
    """Return the centers of all classes; images agree from the cosine ``agree`` on."""
    centers = np.zeros((faces.num_classes, faces.embeddings.shape[1]), np.float32)
    own = np.full(len(faces.labels), np.nan, np.float32)
    in_core = np.zeros(len(faces.labels), np.bool_)
    for label in faces.present.tolist():
        members = faces.members(label)
        rows = faces.unit(members)
        core = _core(rows, agree)
        in_core[members] = core
        centers[label] = rows[core].sum(axis=0)
        if len(members) > 1:
            own[members] = _cosines_with_core(rows, core) if core.any() else _largest(rows)
    return Centers(unit_rows(centers), own, in_core)


def _core(rows: Rows, agree: float) -> NDArray[np.bool_]:
    """Return which images of a class are in its core; none if no two of them agree."""
    if len(rows) == 1:
        return np.ones(1, np.bool_)
    core: NDArray[np.bool_] = rows @ rows[_most_agreeing(rows, agree)] >= agree
    if core.sum() < 2:
        return np.zeros(len(rows), np.bool_)
    for _ in range(_ROUNDS):
        found = _cosines_with_core(rows, core) >= agree
        if found.sum() < 2 or (found == core).all():
            break
        core = found
    return core


def _most_agreeing(rows: Rows, agree: float) -> int:
    """Return the image with which most others agree, of several the one nearest to all."""
    chosen: Numbers = np.arange(len(rows))
    if len(rows) > _LARGEST:
        chosen = np.linspace(0, len(rows) - 1, _LARGEST).round().astype(np.int64)
    cosines = rows[chosen] @ rows[chosen].T
    agreeing = (cosines >= agree).sum(axis=1)
    return int(chosen[np.lexsort((cosines.sum(axis=1), agreeing))[-1]])


def _cosines_with_core(rows: Rows, core: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the cosine of each image with the sum of the core without that image."""
    rest = rows[core].sum(axis=0) - core[:, np.newaxis] * rows
    found: NDArray[np.float32] = np.einsum("nd,nd->n", unit_rows(rest), rows)
    return found


def _largest(rows: Rows) -> NDArray[np.float32]:
    """Return the largest cosine of each image with another one, in blocks."""
    largest = np.full(len(rows), -1, np.float32)
    for start in range(0, len(rows), _LARGEST):
        cosines = rows @ rows[start : start + _LARGEST].T
        numbers = np.arange(start, start + cosines.shape[1])
        cosines[numbers, numbers - start] = -1
        np.maximum(largest, cosines.max(axis=1), out=largest)
    return largest
