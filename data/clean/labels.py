"""Images with a wrong label.

Two things speak against a label: the image is far from the others of its class, and it is near to
another class. An image that another class claims is *moved*; one that is far from its class and
near to none is *junk*: another person, a part of the background, a drawing. In a class in which no
two images agree, nothing says which of them is right: those that another class claims are moved,
but for the one that is claimed least, and if several are left, these are *unsure*. An image that is
alone in its class cannot be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.clean.centers import Centers
from data.clean.faces import EmbeddedFaces, Numbers
from data.clean.thresholds import Thresholds

Search = Callable[[NDArray[Any], NDArray[Any], int], Iterable[Any]]
"""``evaluation.search.search``: gallery, probes and a number of matches to ``Matches``."""


class Kind(IntEnum):
    """What is wrong with a label."""

    MOVED = 0
    JUNK = 1
    UNSURE = 2


class Nearest(NamedTuple):
    """The nearest center of another class, of each image or center.

    Attributes:
        classes: int64 [n]; -1 where there is none.
        cosines: float32 [n].
    """

    classes: Numbers
    cosines: NDArray[np.float32]


class WrongLabels(NamedTuple):
    """Images whose labels look wrong, the worst first.

    Attributes:
        images: int64 [w], numbers of embeddings.
        kinds: uint8 [w], of ``Kind``.
        own: float32 [w], the cosine with the image's own class.
        others: int64 [w], the nearest other class.
        cosines: float32 [w], the cosine with its center.
    """

    images: Numbers
    kinds: NDArray[np.uint8]
    own: NDArray[np.float32]
    others: Numbers
    cosines: NDArray[np.float32]

    def of_kind(self, kind: Kind) -> WrongLabels:
        """Return those of a kind, in their order."""
        return WrongLabels(*(column[self.kinds == kind] for column in self))


def nearest_others(
    rows: NDArray[Any], labels: Numbers, centers: NDArray[np.float32], search: Search
) -> Nearest:
    """Return the nearest center of another class for each row.

    Args:
        rows: embeddings or centers [n, D].
        labels: the class of each row [n].
        centers: of all classes [C, D]; zeros for one that has none.
        search: finds the nearest rows of a gallery.
    """
    present = np.flatnonzero(centers.any(axis=1))
    classes, cosines = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.float32)
    if not len(present):
        return Nearest(classes, cosines)
    # Of the two nearest one is of another class, if there are two.
    for matches in search(centers[present], rows, min(2, len(present))):
        block = slice(matches.first, matches.first + len(matches.rows))
        found = present[matches.rows]
        is_other = found != labels[block, np.newaxis]
        place = is_other.argmax(axis=1)[:, np.newaxis]
        exists = is_other.any(axis=1)
        classes[block] = np.where(exists, np.take_along_axis(found, place, 1)[:, 0], -1)
        cosines[block] = np.where(exists, np.take_along_axis(matches.cosines, place, 1)[:, 0], -1)
    return Nearest(classes, cosines)


def find_wrong_labels(
    faces: EmbeddedFaces, centers: Centers, nearest: Nearest, limits: Thresholds, margin: float
) -> WrongLabels:
    """Return the images whose labels look wrong.

    Args:
        faces: the images.
        centers: of their classes.
        nearest: the nearest other class of each image.
        limits: ``own``, ``agree`` and ``home`` are used.
        margin: how much nearer another class has to be than the own one to claim an image.
    """
    judged = ~np.isnan(centers.own)
    own = np.where(judged, centers.own, 1)
    claimed = (
        (own < limits.agree) & (nearest.cosines >= limits.home) & (nearest.cosines >= own + margin)
    )
    has_core = centers.centers.any(axis=1)[faces.labels]
    # A class keeps one image: of those that are all claimed, the one that is claimed least.
    claimed[_least_claimed(faces.labels, claimed, judged & ~has_core, nearest)] = False
    kinds = np.full(len(faces), -1, np.int64)
    kinds[judged & has_core & (own < limits.own)] = Kind.JUNK
    kinds[claimed] = Kind.MOVED
    left = judged & ~has_core & ~claimed
    left_of_class = np.bincount(faces.labels[left], minlength=faces.num_classes)
    kinds[left & (left_of_class[faces.labels] > 1) & (own < limits.own)] = Kind.UNSURE
    found = np.flatnonzero(kinds >= 0)
    # Surely wrong is what is far from its class and near to another.
    lead = own[found] - np.maximum(nearest.cosines[found], 0)
    found = found[np.lexsort((lead, kinds[found]))]
    return WrongLabels(
        found, kinds[found].astype(np.uint8), own[found].astype(np.float32),
        nearest.classes[found], nearest.cosines[found],
    )  # fmt: skip


def _least_claimed(
    labels: Numbers, claimed: NDArray[np.bool_], among: NDArray[np.bool_], nearest: Nearest
) -> Numbers:
    """Return the least claimed image of each class of which all images are claimed."""
    left = np.unique(labels[among & ~claimed])
    numbers = np.flatnonzero(among & claimed & ~np.isin(labels, left))
    numbers = numbers[np.lexsort((nearest.cosines[numbers], labels[numbers]))]
    least: Numbers = numbers[np.unique(labels[numbers], return_index=True)[1]]
    return least
