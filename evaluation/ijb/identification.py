"""The 1:N protocol: is a probe's person found in a gallery, and is a stranger refused?

IJB-B and IJB-C have two galleries, and each person is in one of them. So for each gallery the
probes of the other one are strangers (open set), and the result is that of both galleries. The
definitions are those of InsightFace's evaluation (``ijb_evals.py``), which follow Grother and Ngan
2014 (Face Recognition Vendor Test, NIST IR 8009) and Maze et al. 2018 (IARPA Janus Benchmark-C):
a probe is identified if its person is the most similar one and more similar than a threshold, and
the threshold is that at which a share of the strangers is similar to anyone.

Shape suffixes: P probes, M those whose person is in the gallery, G templates of the gallery.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluation.ijb.lists import Subjects
from runtime.errors import DataError

FALSE_ALARM_RATES = (0.01, 0.1)
RANKS = (1, 5, 10)


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
    features: NDArray[np.float64], gallery: Subjects, probes: Subjects
) -> Identification:
    """Return how often probes are identified in one gallery.

    Args:
        features: of the templates [T, D], of length 1.
        gallery: has each subject once.
        probes: are looked for.

    Raises:
        DataError: the gallery has a subject twice; no probe is of the gallery, or all are.
    """
    order = np.argsort(gallery.subjects, kind="stable")
    subjects = gallery.subjects[order]
    for twice in np.flatnonzero(np.diff(subjects) == 0)[:1]:
        raise DataError(
            f"the subject {subjects[twice]} has several templates in one gallery, where each has "
            "one in the protocol; take the lists from InsightFace's release"
        )
    places_P = np.minimum(np.searchsorted(subjects, probes.subjects), len(order) - 1)
    is_mated_P = subjects[places_P] == probes.subjects
    if is_mated_P.all() or not is_mated_P.any():
        raise DataError(
            f"{int(is_mated_P.sum()):,} of {len(is_mated_P):,} probes are of subjects in a gallery "
            f"of {len(order):,}; the protocol needs probes of subjects that are in it, and of "
            "others"
        )
    mated_M = np.flatnonzero(is_mated_P)
    columns_M = order[places_P[mated_M]]
    cosines_PG = features[probes.templates] @ features[gallery.templates].T
    own_M = cosines_PG[mated_M, columns_M]
    cosines_PG[mated_M, columns_M] = -np.inf
    best_other_P = cosines_PG.max(axis=1)
    others_before_M = (cosines_PG[mated_M] >= own_M[:, np.newaxis]).sum(axis=1)
    is_first_M = own_M > best_other_P[mated_M]
    highest = np.sort(best_other_P[~is_mated_P])[::-1]
    thresholds = [
        float(highest[max(int(len(highest) * rate) - 1, 0)]) for rate in FALSE_ALARM_RATES
    ]
    return Identification(
        templates=len(order),
        mated=len(own_M),
        strangers=len(highest),
        ranks=[int((others_before_M < rank).sum()) for rank in RANKS],
        rates=[float((is_first_M & (own_M > threshold)).mean()) for threshold in thresholds],
        thresholds=thresholds,
    )
