"""What a training set has in common with a verification set.

A result on people that were trained on says nothing about others. A verification set has no labels,
but its pairs of one person tell which images belong together: these are one person, whose center is
compared with those of all classes. Copies of single images are looked for, too, in whatever class
they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.clean.faces import EmbeddedFaces, Numbers, unit_rows
from data.clean.labels import Search

# Classes that are looked at for each person, and images for each image.
_CLASSES, _IMAGES = 4, 16


class Targets(NamedTuple):
    """A verification set with the embeddings of its images.

    Attributes:
        name: of the set.
        embeddings: floats [2 P, D]; rows 2 i and 2 i + 1 are pair i.
        same: bool [P], whether a pair shows one person.
        firsts: int64 [2 P], for each image the number of the first one of the same bytes.
    """

    name: str
    embeddings: NDArray[Any]
    same: NDArray[np.bool_]
    firsts: Numbers


class Overlap(NamedTuple):
    """What is in both sets.

    Attributes:
        name: of the verification set.
        people: their number in the verification set, as far as its pairs say.
        persons: int64 [m], an image of the verification set of each person that is in both.
        classes: int64 [m], a class that shows this person.
        cosines: float32 [m], of the centers of both.
        originals: int64 [c], images of the verification set.
        copies: int64 [c], numbers of embeddings that are images of the training set, copies of it.
        copy_cosines: float32 [c].
    """

    name: str
    people: int
    persons: Numbers
    classes: Numbers
    cosines: NDArray[np.float32]
    originals: Numbers
    copies: Numbers
    copy_cosines: NDArray[np.float32]


def find_overlap(
    faces: EmbeddedFaces,
    centers: NDArray[np.float32],
    targets: Targets,
    limits: tuple[float, float],
    search: Search,
) -> Overlap:
    """Return the classes and the images that a verification set has, too.

    Args:
        faces: the images of the training set.
        centers: of its classes [C, D]; zeros for one that has none.
        targets: the verification set.
        limits: cosines, from which on a class is a person, and an image a copy.
        search: finds the nearest rows of a gallery.
    """
    images, person_of = people_of(targets)
    firsts = np.unique(person_of, return_index=True)[1]
    sums = np.zeros((len(firsts), targets.embeddings.shape[1]), np.float32)
    rows = unit_rows(targets.embeddings[images])
    np.add.at(sums, person_of, rows)
    present = np.flatnonzero(centers.any(axis=1))
    persons, places, cosines = _found(search, centers[present], sums, _CLASSES, limits[0])
    originals, copies, copy_cosines = _found(search, faces.embeddings, rows, _IMAGES, limits[1])
    return Overlap(
        targets.name, len(firsts), images[firsts[persons]], present[places], cosines,
        images[originals], copies, copy_cosines,
    )  # fmt: skip


def people_of(targets: Targets) -> tuple[Numbers, Numbers]:
    """Return the different images of a verification set, and the number of the person on each.

    Images of a pair of one person, and those of equal bytes, are of one person.
    """
    # Importing SciPy takes longer than a wrong option may take to be answered.
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    count = len(targets.firsts)
    pairs = np.flatnonzero(targets.same)
    first = np.concatenate([2 * pairs, np.arange(count)])
    second = np.concatenate([2 * pairs + 1, targets.firsts])
    links = coo_matrix((np.ones(len(first), np.bool_), (first, second)), (count, count))
    _, person_of = connected_components(links, directed=False)
    images = np.unique(targets.firsts)
    return images, np.unique(person_of[images], return_inverse=True)[1].astype(np.int64)


def _found(
    search: Search, gallery: NDArray[Any], probes: NDArray[Any], top: int, least: float
) -> tuple[Numbers, Numbers, NDArray[np.float32]]:
    """Return probe, row of the gallery and cosine of all matches from ``least`` on."""
    parts = []
    for matches in search(gallery, probes, min(top, len(gallery))):
        probe, place = np.nonzero((matches.cosines >= least) & (matches.rows >= 0))
        parts.append(
            (matches.first + probe, matches.rows[probe, place], matches.cosines[probe, place])
        )
    probes_of, rows, cosines = (np.concatenate(column) for column in zip(*parts))
    return probes_of.astype(np.int64), rows.astype(np.int64), cosines
