"""All that is found in a set, by thresholds that come from the set or from the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from data.clean.centers import Centers, find_centers
from data.clean.faces import EmbeddedFaces, check_lengths
from data.clean.labels import (
    Kind,
    Nearest,
    Search,
    WrongLabels,
    find_wrong_labels,
    nearest_others,
)
from data.clean.merges import Merges, find_merges
from data.clean.overlap import Overlap, Targets, find_overlap
from data.clean.thresholds import (
    Thresholds,
    at_far,
    cosines_of_strangers,
    exceeded_by_chance,
)

# Of pairs of two people, the share that is as near as an image has to be to its class.
OWN_FAR = 1e-2
# The same for images that agree with each other.
AGREE_FAR = 1e-3
# Of images, the share that a class of another person claims by chance; few images do not agree with
# their own class, so that few of those are claimed wrongly.
HOME_CHANCE = 5e-2
# Of people of a verification set, the share of which a class is taken for them by chance.
OVERLAP_CHANCE = 1e-3
COPY = 0.95
MARGIN = 0.1


class Findings(NamedTuple):
    """What is found.

    Attributes:
        limits: the thresholds.
        strangers: the cosines of random pairs of two people, ascending.
        centers: of the classes as they are.
        cleaned: of the classes without wrong labels.
        nearest: of each image the nearest other class.
        wrong: the images with a wrong label.
        merges: the classes that are one identity.
        overlaps: for each verification set what it has in common with this one.
    """

    limits: Thresholds
    strangers: NDArray[np.float32]
    centers: Centers
    cleaned: Centers
    nearest: Nearest
    wrong: WrongLabels
    merges: Merges
    overlaps: list[Overlap]


def find_all(
    faces: EmbeddedFaces,
    targets: Sequence[Targets],
    given: Mapping[str, Optional[float]],
    search: Search,
) -> Findings:
    """Look for wrong labels, classes that are one identity, and overlap with verification sets.

    Args:
        faces: the images.
        targets: the verification sets.
        given: ``margin``, ``copy`` and the names of ``Thresholds``: a cosine, or None for the one
            that is found here.
        search: finds the nearest rows of a gallery.

    Raises:
        DataError: there are no two classes, or an embedding has no length.
    """
    check_lengths(faces.embeddings, "the set")
    for target in targets:
        check_lengths(target.embeddings, target.name)
    strangers = cosines_of_strangers(faces)
    own = _or(given["own"], at_far(strangers, OWN_FAR))
    agree = _or(given["agree"], at_far(strangers, AGREE_FAR))
    centers = find_centers(faces, agree)
    nearest = nearest_others(faces.embeddings, faces.labels, centers.centers, search)
    # Of one image of each class: if a large class has images in another, many are near to that.
    by_chance = nearest.cosines[[faces.members(label)[0] for label in faces.present.tolist()]]
    home = _or(given["home"], exceeded_by_chance(by_chance, HOME_CHANCE))
    overlap = _or(given["overlap"], exceeded_by_chance(by_chance, OVERLAP_CHANCE))
    limits = Thresholds(own, agree, home, merge=1.0, overlap=overlap)
    wrong = find_wrong_labels(faces, centers, nearest, limits, _or(given["margin"], MARGIN))
    cleaned = _centers_without(faces, wrong, agree)
    present = np.flatnonzero(cleaned.centers.any(axis=1))
    largest = nearest_others(cleaned.centers[present], present, cleaned.centers, search)
    # So that in the whole set one pair is expected by chance.
    merge = exceeded_by_chance(largest.cosines, 1 / max(2, len(present)))
    limits = limits._replace(merge=_or(given["merge"], merge))
    merges = find_merges(cleaned.centers, limits.merge, search)
    both = limits.overlap, _or(given["copy"], COPY)
    overlaps = [find_overlap(faces, cleaned.centers, one, both, search) for one in targets]
    return Findings(limits, strangers, centers, cleaned, nearest, wrong, merges, overlaps)


def _or(given: Optional[float], found: float) -> float:
    return found if given is None else given


def _centers_without(faces: EmbeddedFaces, wrong: WrongLabels, agree: float) -> Centers:
    """Return the centers of the classes without the images whose labels are wrong."""
    labels = faces.labels.copy()
    labels[wrong.images[wrong.kinds != Kind.UNSURE]] = -1
    return find_centers(faces.with_labels(labels), agree)
