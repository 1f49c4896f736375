"""Images with a wrong label, by the centers of the classes, and the cosines that say so.

Two things speak against a label: the image is far from the others of its class, and it is near to
another class. An image that another class claims is *moved*; one that is far from its class and
near to none is *junk*: another person, a part of the background, a drawing. In a class in which no
two images agree, nothing says which of them is right: those that another class claims are moved,
but for the one that is claimed least, and if several are left, these are *unsure*. An image that is
alone in its class cannot be judged.

The mean of a class that has wrong images is drawn to them, and in a class of three images one of
them moves it by a third. So a center is the mean of a class's *core*: the image with which most
others agree, and all that agree with the mean of the core without themselves. An image is judged by
the core without it: otherwise each would agree with itself.

The cosines from which on two things show one person are chosen from the set itself. Pairs of images
with different labels nearly all show two people, whatever share of the labels is wrong; pairs with
one label do not nearly all show one. So every threshold comes from the cosines of different people,
and says how often it is reached by chance. Where an image or a center is compared with all classes,
the largest of many cosines counts, which is distributed as Gumbel's extreme value distribution
(Gumbel 1958, Statistics of Extremes); two quartiles fix it, which identities that are in the set
twice hardly change.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.inspect.sheets import evenly_spaced
from evaluation.clean.faces import EmbeddedFaces, Numbers, Rows
from evaluation.features import normalized
from evaluation.search import search
from runtime.errors import DataError

Cosines = NDArray[np.float32]
Answers = NDArray[np.bool_]

OWN_FAR = 1e-2
"""The share of pairs of two people whose cosine is above the limit for an image and its class."""
AGREE_FAR = 1e-3
"""The share of such pairs above the limit for images that agree with each other."""

# All pairs of the images of a class are compared up to this number, of larger ones all pairs of so
# many images at equal distances: 64 MiB of cosines.
_LARGEST = 4096
_ROUNDS = 5
# Pairs of people by which thresholds are chosen, classes whose images are compared with each other,
# and how often: in a small set pairs come again.
_PAIRS = 1 << 22
_CLASSES, _REPEATS = 1024, 64
_QUARTILES = (0.25, 0.75)


class Centers(NamedTuple):
    """Centers of all classes, and each image's cosine with its own.

    Attributes:
        centers: float32 [C, D], of length 1; zeros for a class without images, and for one in
            which no two images agree: nobody knows whom it shows.
        own: float32 [n], the cosine of an image with its class's core without it. In a class in
            which no two images agree, the largest cosine with another image of the class; not a
            number for an image that is alone, or in no class.
        in_core: bool [n]. A class without agreement has no core.
    """

    centers: Rows
    own: Cosines
    in_core: Answers


class WrongLabel(NamedTuple):
    """An image whose label looks wrong.

    Attributes:
        image: the number of its embedding.
        kind: "moved", of another person; "junk", no usable face; or "unsure", undecided.
        own: the cosine with the image's own class.
        other: the nearest other class; -1 if there is none.
        cosine: with its center.
    """

    image: int
    kind: str
    own: float
    other: int
    cosine: float


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
            # The nearest image is the image itself, or equal to it; the second one counts.
            near = _cosines_with_core(rows, core) if core.any() else search(rows, rows, 2)[0][:, 1]
            own[members] = near
    return Centers(normalized(centers), own, in_core)


def _core(rows: Rows, agree: float) -> Answers:
    """Return which images of a class are in its core; none if no two of them agree."""
    if len(rows) == 1:
        return np.ones(1, np.bool_)
    chosen = evenly_spaced(np.arange(len(rows)), _LARGEST)
    cosines = rows[chosen] @ rows[chosen].T
    # The image with which most others agree, of several the one nearest to all.
    most = chosen[np.lexsort((cosines.sum(axis=1), (cosines >= agree).sum(axis=1)))[-1]]
    core: Answers = rows @ rows[most] >= agree
    if core.sum() < 2:
        return np.zeros(len(rows), np.bool_)
    for _ in range(_ROUNDS):
        found = _cosines_with_core(rows, core) >= agree
        if found.sum() < 2 or (found == core).all():
            break
        core = found
    return core


def _cosines_with_core(rows: Rows, core: Answers) -> Cosines:
    """Return the cosine of each image with the sum of the core without that image."""
    rest = rows[core].sum(axis=0) - core[:, np.newaxis] * rows
    found: Cosines = np.einsum("nd,nd->n", normalized(rest), rows)
    return found


def nearest_others(
    rows: NDArray[Any], labels: Numbers, centers: NDArray[np.float32]
) -> tuple[Numbers, Cosines]:
    """Return the nearest other class of each row, or -1, and the cosine with its center [n].

    Args:
        rows: embeddings or centers [n, D].
        labels: the class of each row [n].
        centers: of all classes [C, D]; zeros for one that has none.
    """
    present = np.flatnonzero(centers.any(axis=1))
    # Of the two nearest one is of another class, if there are two.
    cosines, places = search(centers[present], rows, 2)
    # Place -1 is none.
    classes = np.append(present, -1)[places]
    is_other = (classes >= 0) & (classes != labels[:, np.newaxis])
    exists, chosen = is_other.any(axis=1), (np.arange(len(rows)), is_other.argmax(axis=1))
    return np.where(exists, classes[chosen], -1), np.where(exists, cosines[chosen], -1)


def find_wrong_labels(
    faces: EmbeddedFaces,
    centers: Centers,
    others: tuple[Numbers, Cosines],
    limits: Mapping[str, float],
) -> list[WrongLabel]:
    """Return the images whose labels look wrong, the worst first.

    Args:
        faces: the images.
        centers: of their classes.
        others: the nearest other class of each image, and the cosine with it.
        limits: cosines by the names of their options; ``own``, ``agree``, ``home`` and ``margin``
            are used.
    """
    classes, cosines = others
    judged = ~np.isnan(centers.own)
    own = np.where(judged, centers.own, 1)
    nearer = np.maximum(limits["home"], own + limits["margin"])
    claimed = (own < limits["agree"]) & (cosines >= nearer)
    has_core = centers.centers.any(axis=1)[faces.labels]
    # A class without a core keeps one image: the one that is claimed least.
    coreless = np.flatnonzero(judged & ~has_core)
    coreless = coreless[np.lexsort((cosines[coreless], faces.labels[coreless]))]
    claimed[coreless[np.unique(faces.labels[coreless], return_index=True)[1]]] = False
    kinds = np.full(len(own), "", "<U6")
    kinds[judged & has_core & (own < limits["own"])] = "junk"
    kinds[claimed] = "moved"
    left = judged & ~has_core & ~claimed
    left_of_class = np.bincount(faces.labels[left], minlength=faces.num_classes)
    kinds[left & (left_of_class[faces.labels] > 1) & (own < limits["own"])] = "unsure"
    found = np.flatnonzero(kinds != "")
    # Surely wrong is what is far from its class and near to another.
    found = found[np.argsort(own[found] - np.maximum(cosines[found], 0), kind="stable")]
    columns = (found, kinds[found], own[found], classes[found], cosines[found])
    return [WrongLabel(*row) for row in zip(*(column.tolist() for column in columns))]


def cosines_of_strangers(faces: EmbeddedFaces) -> NDArray[np.float32]:
    """Return the cosines of random images of two random classes, float32.

    Raises:
        DataError: there are no two classes.
    """
    if len(faces.present) < 2:
        raise DataError(
            f"the set has {len(faces.present)} identities with images; cleaning compares several"
        )
    generator = np.random.default_rng(0)
    size = min(len(faces.present), _CLASSES)
    upper = np.triu_indices(size, 1)
    found = []
    for _ in range(min(_REPEATS, 1 + _PAIRS // len(upper[0]))):
        # One image of each: the images of a large class that have wrong labels, each paired with
        # the whole class, would be many pairs of one person.
        classes = generator.choice(faces.present, size, replace=False)
        places = (generator.random(size) * faces.sizes[classes]).astype(np.int64)
        images = [faces.members(label)[place] for label, place in zip(classes, places)]
        rows = faces.unit(np.sort(images))
        found.append((rows @ rows.T)[upper])
    return np.concatenate(found)


def own_and_agree(strangers: NDArray[np.float32]) -> tuple[float, float]:
    """Return the cosines that the shares ``OWN_FAR`` and ``AGREE_FAR`` of pairs of people exceed.

    Of a small set with wrong labels the last thousandth of these pairs may show one person each.
    So the second is concluded from the median and the first, by the normal distribution: cosines of
    different people nearly follow it.
    """
    median, own = np.quantile(strangers.astype(np.float64), (0.5, 1 - OWN_FAR))
    normal = NormalDist()
    further = normal.inv_cdf(1 - AGREE_FAR) / normal.inv_cdf(1 - OWN_FAR)
    return float(own), float(min(1.0, median + (own - median) * further))


def exceeded_by_chance(largest: NDArray[np.float32], share: float) -> float:
    """Return the cosine that the largest of many cosines exceeds by chance with this probability.

    It is at most 1, which is the answer without any cosine, too.

    Args:
        largest: for each of some images or centers the cosine with the nearest of other classes.
            Less than a quarter of them may be of the same person.
        share: the probability.
    """
    if not len(largest):
        return 1.0
    # Importing SciPy takes longer than a wrong option may take to be answered.
    from scipy.stats import gumbel_r

    low, high = np.quantile(largest.astype(np.float64), _QUARTILES)
    known = gumbel_r.ppf(_QUARTILES)
    scale = (high - low) / (known[1] - known[0])
    return float(min(1.0, low + scale * (gumbel_r.isf(share) - known[0])))
