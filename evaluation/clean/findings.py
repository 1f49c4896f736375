"""All that is found in a set, by thresholds that come from the set or from the user.

Sets that were collected by names have people under two spellings. Their classes' centers are nearer
to each other than those of any two people. Similarity is not transitive: a chain of look-alikes, or
one class of several people, would join hundreds of classes. So two groups of classes become one
only if the centers of *every* two of their classes are near enough (complete linkage), the nearest
first.

A result on people that were trained on says nothing about others. So each class, and each image of
it, is compared with all images of a verification set; the nearest one counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.verification.bin_file import VerificationSet
from evaluation.clean.faces import EmbeddedFaces, Match, matches_from
from evaluation.clean.labels import (
    Centers,
    WrongLabel,
    cosines_of_strangers,
    exceeded_by_chance,
    find_centers,
    find_wrong_labels,
    nearest_others,
    own_and_agree,
)
from evaluation.features import finite_rows

# The share of images that a class of another person claims by chance. Few images disagree with
# their own class, so few of these are claimed wrongly.
HOME_CHANCE = 5e-2
# The share of images of a verification set for which a class of another person is taken by chance.
OVERLAP_CHANCE = 5e-4
COPY = 0.95
MARGIN = 0.1
# Nearest classes that are looked at for each: an identity in more classes is found from these.
_NEIGHBORS = 16
# Products of blocks and of single rows differ in their last bits.
_ROUNDING = 1e-5
_BLOCK = 8192

Merge = tuple[tuple[int, ...], float]
"""The classes of one identity, ascending, and the smallest cosine of two of their centers."""


class Overlap(NamedTuple):
    """People and images that are in both sets.

    Attributes:
        pairs: the verification set.
        persons: classes that show a person of it, and the nearest image of it.
        copies: embeddings of images that are copies, and the image of the set.
    """

    pairs: VerificationSet
    persons: list[Match]
    copies: list[Match]


class Findings(NamedTuple):
    """Wrong labels, identities that occur twice, and overlap with verification sets.

    Attributes:
        limits: the thresholds, cosines by the names of their options.
        centers: of the classes as they are.
        wrong: the images with a wrong label.
        merges: the classes that are one identity.
        overlaps: for each verification set what it has in common with this one.
    """

    limits: Mapping[str, float]
    centers: Centers
    wrong: list[WrongLabel]
    merges: list[Merge]
    overlaps: list[Overlap]


def find_all(
    faces: EmbeddedFaces,
    targets: Sequence[tuple[VerificationSet, NDArray[Any]]],
    given: Mapping[str, float],
) -> Findings:
    """Look for wrong labels, classes that are one identity, and overlap with verification sets.

    Args:
        faces: the images.
        targets: the verification sets, and the embeddings [2 P, D] of each.
        given: thresholds in place of those that are found here, by the names of their options.

    Raises:
        DataError: there are no two classes, or an embedding has no length.
    """
    for name, rows in (("the set", faces.embeddings), *((one.name, rows) for one, rows in targets)):
        for start in range(0, len(rows), _BLOCK):
            finite_rows(rows, start, _BLOCK, name)
    own, agree = own_and_agree(cosines_of_strangers(faces))
    limits = {"own": own, "agree": agree, "margin": MARGIN, "copy": COPY, **given}
    centers = find_centers(faces, limits["agree"])
    others = nearest_others(faces.embeddings, faces.labels, centers.centers)
    # One image of each class: many images of a large class may be near one other class.
    by_chance = others[1][[faces.members(label)[0] for label in faces.present.tolist()]]
    for name, chance in (("home", HOME_CHANCE), ("overlap", OVERLAP_CHANCE)):
        limits.setdefault(name, exceeded_by_chance(by_chance, chance))
    wrong = find_wrong_labels(faces, centers, others, limits)
    labels = faces.labels.copy()
    labels[[one.image for one in wrong if one.kind != "unsure"]] = -1
    right = EmbeddedFaces(faces.embeddings, labels, faces.images, faces.num_classes)
    cleaned = find_centers(right, limits["agree"]).centers
    present = np.flatnonzero(cleaned.any(axis=1))
    _, largest = nearest_others(cleaned[present], present, cleaned)
    # So that in the whole set one pair is expected by chance.
    limits.setdefault("merge", exceeded_by_chance(largest, 1 / max(2, len(present))))
    classes, every = (present, cleaned[present]), (np.arange(len(labels)), faces.embeddings)
    overlaps = []
    for pairs, embeddings in targets:
        images = np.unique(pairs.firsts)
        gallery = images, embeddings[images]
        persons = matches_from(gallery, classes, 1, limits["overlap"])
        copies = matches_from(gallery, every, 1, limits["copy"])
        overlaps.append(Overlap(pairs, persons, copies))
    return Findings(limits, centers, wrong, find_merges(cleaned, limits["merge"]), overlaps)


def find_merges(centers: NDArray[np.float32], merge: float) -> list[Merge]:
    """Return the groups of classes whose centers are all as near to each other as ``merge``.

    ``centers`` are [C, D], zeros for a class that has none. The most similar group comes first.
    """
    present = np.flatnonzero(centers.any(axis=1))
    known = present, centers[present]
    edges = {
        (-one.cosine, min(one[:2]), max(one[:2]))
        for one in matches_from(known, known, _NEIGHBORS, merge)
        if one.probe != one.found
    }
    group_of: dict[int, list[int]] = {}
    for _, first, second in sorted(edges):
        one, other = group_of.setdefault(first, [first]), group_of.setdefault(second, [second])
        # All of one have to be near to all of the other.
        if one is other or (centers[one] @ centers[other].T).min() < merge - _ROUNDING:
            continue
        one += other
        group_of.update(dict.fromkeys(other, one))
    groups = {tuple(sorted(group)) for group in group_of.values() if len(group) > 1}
    of_groups = {group: centers[list(group)] for group in groups}
    smallest = {group: float((rows @ rows.T).min()) for group, rows in of_groups.items()}
    return sorted(smallest.items(), key=lambda one: (-one[1], one[0]))
