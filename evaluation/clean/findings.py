"""All that is found in a set, by thresholds that come from the set or from the user.

Sets that were collected by names have people under two spellings. Their classes' centers are nearer
to each other than those of any two people. Similarity is not transitive: a chain of look-alikes, or
one class of several people, would join hundreds of classes. So two groups of classes become one
only if the centers of *every* two of their classes are near enough (complete linkage), the nearest
first.

A verification set has no labels, but its pairs of one person tell which images belong together:
these are one person, whose center is compared with those of all classes. A result on people that
were trained on says nothing about others. Copies of single images are looked for, too, in whatever
class they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.verification.bin_file import VerificationSet
from evaluation.clean.faces import EmbeddedFaces, Match, Numbers, matches_from
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
from evaluation.features import finite_rows, normalized

# The share of images that a class of another person claims by chance. Few images disagree with
# their own class, so few of these are claimed wrongly.
HOME_CHANCE = 5e-2
# The share of people of a verification set for whom a class of another person is taken by chance.
OVERLAP_CHANCE = 1e-3
COPY = 0.95
MARGIN = 0.1
# Nearest classes that are looked at for each: an identity in more classes is found from these.
_NEIGHBORS = 16
# Classes that are looked at for each person of a verification set, and images for each image.
_CLASSES, _IMAGES = 4, 16
# Products of blocks and of single rows differ in their last bits.
_ROUNDING = 1e-5
_BLOCK = 8192

Merge = tuple[tuple[int, ...], float]
"""The classes of one identity, ascending, and the smallest cosine of two of their centers."""


class Overlap(NamedTuple):
    """People and images that are in both sets.

    Attributes:
        pairs: the verification set.
        persons: an image of each person that is in both, and a class that shows this person.
        copies: images, and embeddings of images of the training set that are copies of them.
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
    overlaps = [find_overlap(faces, cleaned, *target, limits) for target in targets]
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


def find_overlap(
    faces: EmbeddedFaces,
    centers: NDArray[np.float32],
    pairs: VerificationSet,
    embeddings: NDArray[Any],
    limits: Mapping[str, float],
) -> Overlap:
    """Return the classes and the images that a verification set has, too.

    Args:
        faces: the images of the training set.
        centers: of its classes [C, D]; zeros for one that has none.
        pairs: the verification set.
        embeddings: of its images [2 P, D].
        limits: ``overlap`` and ``copy``, from which on a class is a person, and an image a copy.
    """
    images, person_of = people_of(pairs)
    firsts = np.unique(person_of, return_index=True)[1]
    sums = np.zeros((len(firsts), embeddings.shape[1]), np.float32)
    rows = normalized(np.array(embeddings[images], np.float32))
    np.add.at(sums, person_of, rows)
    present = np.flatnonzero(centers.any(axis=1))
    classes, people = (present, centers[present]), (images[firsts], sums)
    every = np.arange(len(faces.embeddings)), faces.embeddings
    return Overlap(
        pairs,
        persons=matches_from(classes, people, _CLASSES, limits["overlap"]),
        copies=matches_from(every, (images, rows), _IMAGES, limits["copy"]),
    )


def people_of(pairs: VerificationSet) -> tuple[Numbers, Numbers]:
    """Return the different images of a verification set, and the number of the person on each.

    Images of a pair of one person, and those of equal bytes, are of one person.
    """
    # Importing SciPy takes longer than a wrong option may take to be answered.
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    count = len(pairs.firsts)
    same = np.flatnonzero(pairs.same)
    first = np.concatenate([2 * same, np.arange(count)])
    second = np.concatenate([2 * same + 1, pairs.firsts])
    links = coo_matrix((np.ones(len(first), np.bool_), (first, second)), (count, count))
    _, person_of = connected_components(links, directed=False)
    images = np.unique(pairs.firsts)
    return images, np.unique(person_of[images], return_inverse=True)[1].astype(np.int64)
