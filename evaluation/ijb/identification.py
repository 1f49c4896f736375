"""The 1:N protocol: is a probe's person found in a gallery, and is a stranger refused?

IJB-B and IJB-C have two galleries, and each person is in one of them. So for each gallery the
probes of the other one are strangers (open set), and the result is that of both galleries. The
definitions are those of InsightFace's evaluation (``ijb_evals.py``), which follow Grother and Ngan
2014 (Face Recognition Vendor Test, NIST IR 8009) and Maze et al. 2018 (IARPA Janus Benchmark-C):
a probe is identified if its person is the most similar one and more similar than a threshold, and
the threshold is that at which a share of the strangers is similar to anyone.

Shape suffixes: P probes of a block, G templates of the gallery.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluation.ijb.lists import Subjects
from runtime.errors import DataError

FALSE_ALARM_RATES = (0.01, 0.1)
RANKS = (1, 5, 10)
# Of which the cosines with 2,000 templates have 8 MiB.
_BLOCK = 512


class Identification(NamedTuple):
    """The result on one gallery.

    Attributes:
        templates: of the gallery.
        mated: probes whose person is in the gallery.
        strangers: all other probes.
        ranks: for each of ``RANKS`` how many mated probes have their person among as many of the
            most similar ones.
        rates: for each of ``FALSE_ALARM_RATES`` the share of the mated probes that are identified
            (DIR, TPIR).
        thresholds: of these.
    """

    templates: int
    mated: int
    strangers: int
    ranks: list[int]
    rates: list[float]
    thresholds: list[float]


def identify(
    features: NDArray[np.float64], gallery: Subjects, probes: Subjects, block: int = _BLOCK
) -> Identification:
    """Return how often probes are identified in one gallery.

    Args:
        features: of the templates [T, D], of length 1.
        gallery: has each subject once.
        probes: are looked for.
        block: probes that are computed at once.

    Raises:
        DataError: the gallery has a subject twice; no probe is of the gallery, or all are.
    """
    order = _places_of_subjects(gallery)
    sorted_subjects = gallery.subjects[order]
    at = np.searchsorted(sorted_subjects, probes.subjects)
    at = np.minimum(at, len(order) - 1)
    is_mated = sorted_subjects[at] == probes.subjects
    if is_mated.all() or not is_mated.any():
        raise DataError(
            f"{int(is_mated.sum()):,} of {len(is_mated):,} probes are of subjects in a gallery of "
            f"{len(order):,}; the protocol needs probes of subjects that are in it, and of others"
        )
    mates = np.where(is_mated, order[at], -1)
    own, best_other, places = _score(features, gallery, probes, mates, block)
    own, others, places = own[is_mated], best_other[is_mated], places[is_mated]
    highest = np.sort(best_other[~is_mated])[::-1]
    thresholds = [
        float(highest[max(int(len(highest) * rate) - 1, 0)]) for rate in FALSE_ALARM_RATES
    ]
    return Identification(
        templates=len(order),
        mated=len(own),
        strangers=len(highest),
        ranks=[int((places < rank).sum()) for rank in RANKS],
        rates=[float(((own > others) & (own > threshold)).mean()) for threshold in thresholds],
        thresholds=thresholds,
    )


def _places_of_subjects(gallery: Subjects) -> NDArray[np.int64]:
    """Return the places in the gallery, ordered by subject."""
    order = np.argsort(gallery.subjects, kind="stable")
    twice = np.flatnonzero(np.diff(gallery.subjects[order]) == 0)
    if len(twice):
        raise DataError(
            f"the subject {gallery.subjects[order][twice[0]]} has several templates in one "
            "gallery, where each has one in the protocol; take the lists from InsightFace's release"
        )
    return order


def _score(
    features: NDArray[np.float64],
    gallery: Subjects,
    probes: Subjects,
    mates: NDArray[np.int64],
    block: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Compare all probes with the gallery; ``mates`` has the place of their person, or -1.

    Returns:
        The cosine of each probe with its own person (NaN for a stranger), the largest with someone
        else, and how many others are at least as similar as its own person (0 for a stranger).
    """
    count = len(mates)
    of_own, best_other = np.full(count, np.nan), np.empty(count)
    places = np.zeros(count, np.int64)
    gallery_GD = features[gallery.templates]
    for start in range(0, count, block):
        one = slice(start, start + block)
        cosines_PG = features[probes.templates[one]] @ gallery_GD.T
        mated = np.flatnonzero(mates[one] >= 0)
        columns = mates[one][mated]
        own = cosines_PG[mated, columns]
        of_own[one][mated] = own
        cosines_PG[mated, columns] = -np.inf
        best_other[one] = cosines_PG.max(axis=1)
        places[one][mated] = (cosines_PG[mated] >= own[:, np.newaxis]).sum(axis=1)
    return of_own, best_other, places
