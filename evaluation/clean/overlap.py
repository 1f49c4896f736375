"""People and images that a training set shares with a verification set.

A result on people that were trained on says nothing about others. A verification set has no labels,
but its pairs of one person tell which images belong together: these are one person, whose center is
compared with those of all classes. Copies of single images are looked for, too, in whatever class
they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.verification.bin_file import VerificationSet
from evaluation.clean.faces import EmbeddedFaces, Match, Numbers, matches_from, unit_rows

# Classes that are looked at for each person, and images for each image.
_CLASSES, _IMAGES = 4, 16


class Overlap(NamedTuple):
    """People and images that are in both sets.

    Attributes:
        pairs: the verification set.
        people: their number in the verification set, as far as its pairs say.
        persons: an image of each person that is in both, and a class that shows this person.
        copies: images, and embeddings of images of the training set that are copies of them.
    """

    pairs: VerificationSet
    people: int
    persons: list[Match]
    copies: list[Match]


def find_overlap(
    faces: EmbeddedFaces,
    centers: NDArray[np.float32],
    pairs: VerificationSet,
    embeddings: NDArray[Any],
    limits: tuple[float, float],
) -> Overlap:
    """Return the classes and the images that a verification set has, too.

    Args:
        faces: the images of the training set.
        centers: of its classes [C, D]; zeros for one that has none.
        pairs: the verification set.
        embeddings: of its images [2 P, D].
        limits: cosines, from which on a class is a person, and an image a copy.
    """
    images, person_of = people_of(pairs)
    firsts = np.unique(person_of, return_index=True)[1]
    sums = np.zeros((len(firsts), embeddings.shape[1]), np.float32)
    rows = unit_rows(embeddings[images])
    np.add.at(sums, person_of, rows)
    present = np.flatnonzero(centers.any(axis=1))
    persons = [
        Match(int(images[firsts[person]]), int(present[place]), cosine)
        for person, place, cosine in matches_from(centers[present], sums, _CLASSES, limits[0])
    ]
    copies = [
        match._replace(probe=int(images[match.probe]))
        for match in matches_from(faces.embeddings, rows, _IMAGES, limits[1])
    ]
    return Overlap(pairs, len(firsts), persons, copies)


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
