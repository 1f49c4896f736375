"""Templates and the protocols on them: pairs (1:1), and probes looked for in galleries (1:N).

A template, several images and videos of one person, becomes one vector as in InsightFace's
evaluations, and in Whitelam et al. 2017 (IARPA Janus Benchmark-B) with averages over the frames of
a video: the features of the faces of one media (an image, or the frames of a video) are averaged,
the averages of a template's media are added, and the sum gets the length 1. A face of which the
detector is not sure, or whose features are short, counts less. InsightFace's programs differ in the
features of a face, the sum of those of its views (the image and its mirror image). ``ijb.py`` of
Partial FC gives each view the length 1 before, so that a face counts by how much its views agree;
``ijb_11.py`` and ``ijb_evals.py`` add them as they are, so that it counts by their lengths, too.

1:1: IJB-C has 15,658,489 pairs, so cosines are computed in blocks. The curve is scikit-learn's, and
a rate is taken at the curve's point whose false accept rate is nearest, as in InsightFace's
evaluation: so numbers can be compared with those that are published. Its program also leaves the
cosines and the curve as two files, which are written here under the same names.

1:N: IJB-B and IJB-C have two galleries, and each person is in one of them. So for each gallery the
probes of the other one are strangers (open set), and the result is that of both galleries. The
definitions are those of InsightFace's evaluation (``ijb_evals.py``), which follow Grother and Ngan
2014 (Face Recognition Vendor Test, NIST IR 8009) and Maze et al. 2018 (IARPA Janus Benchmark-C):
a probe is identified if its person is the most similar one and more similar than a threshold, and
the threshold is that at which a share of the strangers is similar to anyone.

Results are values of JSON, shares and not percent; tables show percent. Shape suffixes: P probes, M
those whose person is in the gallery, G templates of the gallery.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.metrics import auc, roc_curve

from evaluation.features import Features, normalized
from evaluation.files import writing
from evaluation.ijb.lists import Faces, Pairs, Subjects
from evaluation.verification.curves import FARS, Result
from evaluation.verification.pictures import roc_figure
from evaluation.verification.report import aligned
from runtime.errors import DataError
from runtime.files import StagedFiles

_FALSE_ALARM_RATES = (0.01, 0.1)
_RANKS = {f"rank-{rank}": rank for rank in (1, 5, 10)}
# Both sides of a block stay in a processor's cache.
_BLOCK = 512
# A chart has fewer pixels in a row.
_POINTS = 2000
_LEAST_SHOWN = 0.3


def template_features(
    parts: Iterable[Features],
    faces: Faces,
    *,
    unit_views: bool,
    detector_score: bool = True,
    norm_score: bool = True,
) -> NDArray[np.float64]:
    """Return the vector of each template, float64 [T, D], of length 1; zeros stay zeros.

    Args:
        parts: the features [views, b, D] of all faces, in their order.
        faces: which belong together.
        unit_views: whether each view gets the length 1 before they are added.
        detector_score: whether the features of a face are multiplied by the detector's score
            (InsightFace's ``use_detector_score``).
        norm_score: whether they keep their length, otherwise they get the length 1 before
            (``use_norm_score``).

    Features come in parts, because those of 469,375 faces are 1 GB.
    """
    both = np.stack([faces.templates, faces.media])
    _, place, counts = np.unique(both, axis=1, return_inverse=True, return_counts=True)
    weights = 1 / counts[place.ravel()]
    if detector_score:
        weights *= faces.scores
    sums = np.zeros((len(faces.template_ids), 0))
    start = 0
    for part in parts:
        views = part.astype(np.float64)
        rows = (normalized(views) if unit_views else views).sum(axis=0)
        if not norm_score:
            rows = normalized(rows)
        if not sums.size:
            sums = np.zeros((len(sums), rows.shape[1]))
        stop = start + len(rows)
        places, own = np.unique(faces.templates[start:stop], return_inverse=True)
        sums[places] += csr_matrix((weights[start:stop], (own, np.arange(len(rows))))) @ rows
        start = stop
    assert start == len(faces.names), (start, len(faces.names))
    return normalized(sums)


def cosines_of_pairs(features: NDArray[np.float64], pairs: Pairs) -> NDArray[np.float64]:
    """Return the cosine of each pair, float64 [P]; ``features`` [T, D] have the length 1."""
    cosines = np.empty(len(pairs.same))
    for start in range(0, len(cosines), _BLOCK):
        one = slice(start, start + _BLOCK)
        first, second = features[pairs.first[one]], features[pairs.second[one]]
        np.einsum("ij,ij->i", first, second, out=cosines[one])
    return cosines


def verify(
    cosines: NDArray[np.float64], same: NDArray[np.bool_]
) -> tuple[Result, NDArray[np.float64]]:
    """Return the result of 1:1, and the curve: false and true accept rates [2, points].

    Pairs of equal cosines are accepted together. Of two points that are equally near, the one with
    the larger false accept rate is taken. scikit-learn leaves out points of the curve between which
    it is straight.

    Args:
        cosines: of the pairs [P].
        same: whether they show one person [P]; there are both kinds.
    """
    curve = np.stack(roc_curve(same, cosines))
    rates = []
    for wanted in FARS:
        # From the end, where the larger rates are.
        nearest = curve.shape[1] - 1 - int(np.abs(curve[0, ::-1] - wanted).argmin())
        far, tar, threshold = curve[:, nearest].tolist()
        # Above all cosines if nothing is accepted; JSON has no infinity.
        least = threshold if math.isfinite(threshold) else None
        rates.append({"far": wanted, "tar": tar, "nearest_far": far, "threshold": least})
    area = float(auc(*curve[:2]))
    found = {"pairs": len(same), "same": int(same.sum()), "auc": area, "tar_at_far": rates}
    return found, curve[:2]


def identify(features: NDArray[np.float64], gallery: Subjects, probes: Subjects) -> Result:
    """Return the result of 1:N on one gallery.

    ``rank-1`` is the share of the mated probes, those whose person is in the gallery, that have
    their person among as many of the most similar ones; ``tpir_at_fpir`` the share of them that is
    identified at a false alarm rate; ``others`` the number of all other probes.

    Args:
        features: of the templates [T, D], of length 1.
        gallery: has each subject once.
        probes: are looked for.

    Raises:
        DataError: the gallery has a subject twice; no probe is of the gallery, or all are.
    """
    order = np.argsort(gallery.subjects, kind="stable")
    subjects = gallery.subjects[order]
    places_P = np.minimum(np.searchsorted(subjects, probes.subjects), len(order) - 1)
    is_mated_P = subjects[places_P] == probes.subjects
    if not np.diff(subjects).all() or is_mated_P.all() or not is_mated_P.any():
        raise DataError(
            f"of {len(is_mated_P):,} probes {is_mated_P.sum():,} are of subjects in a gallery of "
            f"{len(order):,}; the protocol needs probes of subjects that are in it once, and of "
            "others: take the lists from InsightFace's release"
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
    thresholds = {
        f"{rate:g}": float(highest[max(int(len(highest) * rate) - 1, 0)])
        for rate in _FALSE_ALARM_RATES
    }
    return {
        "templates": len(order),
        "mated": len(own_M),
        "others": len(highest),
        **{name: float((others_before_M < rank).mean()) for name, rank in _RANKS.items()},
        "tpir_at_fpir": {
            rate: float((is_first_M & (own_M > threshold)).mean())
            for rate, threshold in thresholds.items()
        },
        "thresholds": thresholds,
    }


def mean_of(galleries: Mapping[str, Result]) -> Result:
    """Return the ranks of all mated probes of the galleries, and the mean of the other rates."""
    every = [*galleries.values()]
    mated = [one["mated"] for one in every]
    return {
        **{name: float(np.average([one[name] for one in every], weights=mated)) for name in _RANKS},
        "tpir_at_fpir": {
            rate: float(np.mean([one["tpir_at_fpir"][rate] for one in every]))
            for rate in every[0]["tpir_at_fpir"]
        },
    }


def verification_lines(name: str, found: Result) -> list[str]:
    """Return the true accept rates in percent, as lines of a table."""
    heading = ["TAR at FAR", *(f"{far:g}" for far in FARS), "AUC"]
    rates = [*(rate["tar"] for rate in found["tar_at_far"]), found["auc"]]
    return aligned([heading, [name, *map(_percent, rates)]])


def identification_lines(galleries: Mapping[str, Result]) -> list[str]:
    """Return the rates of each gallery and their mean, in percent, as lines of a table."""
    heading = ["gallery", *_RANKS, *(f"TPIR at FPIR {rate:g}" for rate in _FALSE_ALARM_RATES)]
    rows = [
        [name, *map(_percent, [*(one[rank] for rank in _RANKS), *one["tpir_at_fpir"].values()])]
        for name, one in {**galleries, "mean": mean_of(galleries)}.items()
    ]
    return aligned([heading, *rows])


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def write_results(
    paths: tuple[Path, Path], cosines: NDArray[np.float64], curve: NDArray[np.float64], text: str
) -> None:
    """Write the cosines float64 [P] in the order of the list of pairs, and a picture of the curve.

    Raises:
        DataError: the disk is full.
    """
    far = np.geomspace(FARS[0], FARS[-1], _POINTS)
    figure = roc_figure("ROC on IJB", {text: (far, np.interp(far, *curve))})
    figure.axes[0].set(xlim=(far[0], far[-1]), ylim=(_LEAST_SHOWN, 1))
    cosines_path, curve_path = paths
    with writing(cosines_path, "--result-dir"), StagedFiles() as files:
        np.save(files.open(cosines_path), cosines)
        figure.savefig(files.open(curve_path), format="pdf")
