"""The cosines from which on two things show one person, chosen from the set itself.

Pairs of images with different labels nearly all show two people, whatever share of the labels is
wrong; pairs with one label do not nearly all show one. So every threshold comes from the cosines of
different people, and says how often it is reached by chance.

Where an image or a center is compared with all classes, the largest of many cosines counts. The
largest of many is distributed as Gumbel's extreme value distribution (Gumbel 1958, Statistics of
Extremes); two quartiles fix it, which identities that are in the set twice hardly change.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluation.clean.faces import EmbeddedFaces
from runtime.errors import DataError

_PAIRS = 1 << 22
# Images that are compared with each other, and how often: in a small set pairs come again.
_CLASSES, _ROUNDS = 1024, 64
_SEEN_FAR = 1e-2
_QUARTILES = (0.25, 0.75)


class Thresholds(NamedTuple):
    """Cosines.

    Attributes:
        own: an image below it is far from its class.
        agree: an image from it on agrees with its class.
        home: another class whose center is as near as this claims an image.
        merge: classes whose centers are as near as this are one identity.
        overlap: a class that is as near as this to a person of a verification set is this person.
    """

    own: float
    agree: float
    home: float
    merge: float
    overlap: float


def cosines_of_strangers(faces: EmbeddedFaces) -> NDArray[np.float32]:
    """Return the cosines of random images of two random classes, float32, ascending.

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
    for _ in range(min(_ROUNDS, 1 + _PAIRS // len(upper[0]))):
        # One image of each: the images of a large class that have wrong labels, each paired with
        # the whole class, would be many pairs of one person.
        chosen = generator.choice(faces.present, size, replace=False)
        rows = faces.unit(np.sort(faces.one_of_each(chosen, generator)))
        found.append((rows @ rows.T)[upper])
    every: NDArray[np.float32] = np.sort(np.concatenate(found))
    return every


def at_far(strangers: NDArray[np.float32], far: float) -> float:
    """Return the cosine that the share ``far`` of pairs of two people exceeds.

    Of a small set with wrong labels the last thousandth of these pairs may show one person each.
    So less than a hundredth is concluded from the median and the last hundredth, by the normal
    distribution: cosines of different people nearly follow it.
    """
    if far >= _SEEN_FAR:
        return float(np.quantile(strangers, 1 - far))
    median, seen = np.quantile(strangers.astype(np.float64), (0.5, 1 - _SEEN_FAR))
    normal = NormalDist()
    further = normal.inv_cdf(1 - far) / normal.inv_cdf(1 - _SEEN_FAR)
    return float(min(1.0, median + (seen - median) * further))


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
    low, high = np.quantile(largest.astype(np.float64), _QUARTILES)
    # Of the cumulative distribution exp(-exp(-(x - location) / scale)).
    q_low, q_high = -np.log(-np.log(_QUARTILES))
    scale = (high - low) / (q_high - q_low)
    location = low - scale * q_low
    return float(min(1.0, location - scale * np.log(-np.log1p(-share))))
