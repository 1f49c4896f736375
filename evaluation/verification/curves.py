"""Accuracy over folds, the ROC, and thresholds for a wanted FAR, from the cosines of pairs.

The protocol of verification cuts the pairs of a set into consecutive parts in file order. Each is
judged with the threshold that is best on all others (Huang et al. 2007, Labeled Faces in the Wild),
of the same grid as InsightFace's.

The accuracy of a balanced set says little about use, where nearly all pairs show two people and a
false acceptance costs most. There one chooses a false accept rate (FAR, the share of accepted pairs
of two people), and asks for the true accept rate (TAR, that of one person) and for the threshold
that keeps it. Nothing here reads or prints.

A pair is accepted if its cosine is at least the threshold. P pairs have P cosines.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from evaluation.features import Features

Scores = NDArray[np.float64]
Answers = NDArray[np.bool_]
Result = dict[str, Any]
"""Numbers under their names in the JSON output."""

FOLDS = 10
# Squared distances of unit vectors lie between 0 and 4.
ACCURACY_THRESHOLDS = np.arange(400) / 100
ROC_THRESHOLDS = np.arange(4000) / 1000
FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
# A count that is a product, such as 0.001 * 3000, may be too small by a rounding.
_ROUNDING = 1e-6
# Thresholds are multiples of this: what is printed is what is used.
_DIGITS = 4
_STEP = 10.0**-_DIGITS


class Pairs(NamedTuple):
    """Embedded pairs of one set, or of several."""

    same: Answers
    """Whether pair ``i`` shows one person [P]; there are pairs of both kinds."""
    cosines: Scores
    """Of the embeddings of each pair [P]."""
    distances: Scores
    """Their squared distances [P], by which the protocol of ten folds judges."""
    fold: NDArray[np.int64]
    """Of each pair [P], from 0 on; the last pair is in the last fold."""


class Curve(NamedTuple):
    """A receiver operating characteristic, from the point (0, 0) to (1, 1)."""

    far: Scores
    """Share of accepted pairs of two people, ascending [N]."""
    tar: Scores
    """Share of accepted pairs of one person, ascending [N]."""
    different: int
    """The number of pairs of two people."""


def folds_of(pairs: int, folds: int) -> NDArray[np.int64]:
    """Return the fold [P] of each of so many pairs: consecutive parts, of equal size or nearly."""
    sizes = [len(part) for part in np.array_split(np.empty(pairs), folds)]
    return np.repeat(np.arange(folds), sizes)


def accuracies_of_folds(pairs: Pairs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the accuracy and the threshold, a squared distance, of each fold."""
    same, _, distances, fold = pairs
    folds = fold[-1] + 1
    accepted = _accepted(distances[same], fold[same], folds, ACCURACY_THRESHOLDS)
    falsely_accepted = _accepted(distances[~same], fold[~same], folds, ACCURACY_THRESHOLDS)
    others = np.bincount(fold[~same], minlength=folds)
    right = accepted + others[:, np.newaxis] - falsely_accepted
    best = _of_others(right).argmax(axis=1)
    return right[np.arange(folds), best] / np.bincount(fold), ACCURACY_THRESHOLDS[best]


def true_accept_rate(pairs: Pairs, far: float) -> float:
    """Return the share of same-person pairs accepted at a false accept rate of ``far``."""
    same, _, distances, fold = pairs
    folds = fold[-1] + 1
    falsely_accepted = _accepted(distances[~same], fold[~same], folds, ROC_THRESHOLDS)
    training = _of_others(falsely_accepted)
    others = _of_others(np.bincount(fold[~same], minlength=folds))
    thresholds = np.array(
        [np.interp(far * count, row, ROC_THRESHOLDS) for row, count in zip(training, others)]
    )
    return float((distances < thresholds[fold])[same].mean())


def _of_others(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each fold the sum over all others; a single fold judges itself, as there."""
    others: NDArray[np.int64] = counts.sum(axis=0) - counts if len(counts) > 1 else counts
    return others


def _accepted(
    distances: NDArray[np.float64],
    fold: NDArray[np.int64],
    folds: int,
    thresholds: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Return how many pairs of each fold lie below each threshold: [folds, thresholds]."""
    parts = (np.sort(distances[fold == one]) for one in range(folds))
    return np.stack([np.searchsorted(part, thresholds) for part in parts])


def pairs_of(embeddings: Features, same: Answers, folds: int = FOLDS) -> Pairs:
    """Return the pairs [P] of a set, which are cut into consecutive folds.

    Args:
        embeddings: L2-normalized [2 P, D]; rows ``2 i`` and ``2 i + 1`` are pair ``i``.
        same: whether pair ``i`` shows one person [P].
        folds: at most P.
    """
    assert len(embeddings) == 2 * len(same), (len(embeddings), len(same))
    first, second = embeddings[0::2].astype(np.float64), embeddings[1::2].astype(np.float64)
    cosines = np.einsum("pd,pd->p", first, second)
    distances = np.square(first - second).sum(axis=1)
    return Pairs(same, cosines, distances, folds_of(len(same), folds))


def roc(cosines: Scores, same: Answers) -> Curve:
    """Return the ROC of pairs [P] of both kinds; ``same`` says which show one person [P]."""
    # Its import takes longer than a wrong option may take to be answered.
    from sklearn.metrics import roc_curve

    far, tar, _ = roc_curve(same, cosines, drop_intermediate=False)
    return Curve(far, tar, int(np.sum(~same)))


def area_under(curve: Curve) -> float:
    """Return the AUC: how often a pair of one person is more similar than one of two people."""
    from sklearn.metrics import auc

    return float(auc(curve.far, curve.tar))


def equal_error_rate(curve: Curve) -> float:
    """Return the EER: the FAR that is equal to the share of refused pairs of one person.

    Between the two points of the ROC around it, it is interpolated linearly.
    """
    # The difference rises from -1 to 1, at each point of the ROC.
    return float(np.interp(0.0, curve.far - (1 - curve.tar), curve.far))


def is_measurable(far: float, different: int) -> bool:
    """Whether a FAR is at least one of so many pairs of two people."""
    return far * different + _ROUNDING >= 1


def tar_at(curve: Curve, far: float) -> Optional[float]:
    """Return the largest TAR of all thresholds with at most this FAR.

    None for a FAR below one of the pairs of two people, of which the set says nothing.
    """
    if not is_measurable(far, curve.different):
        return None
    counts = curve.far * curve.different
    last = np.searchsorted(counts, far * curve.different + _ROUNDING, side="right") - 1
    return float(curve.tar[last])


def threshold_for(different: Scores, far: float) -> Optional[float]:
    """Return the threshold for a FAR, of the cosines of pairs of two people in any order.

    It lies in the middle between the least similar pair that may be accepted and the next one, so
    that another processor's rounding moves no pair to its other side; rounded to four decimals,
    but never to where that next one is accepted. Pairs with equal cosines are accepted together or
    not at all. None for a FAR below one of the pairs.
    """
    if not is_measurable(far, len(different)):
        return None
    allowed = min(int(far * len(different) + _ROUNDING), len(different) - 1)
    # The most similar pair that must be refused.
    refused = np.partition(different, len(different) - 1 - allowed)[len(different) - 1 - allowed]
    accepted = different[different > refused]
    middle = (accepted.min() + refused) / 2 if len(accepted) else refused
    # Rounded as its digits are read, so that the printed number is the same one.
    threshold = round(float(middle), _DIGITS)
    return threshold if threshold > refused else round(threshold + _STEP, _DIGITS)


def hold_out(pairs: Pairs, far: float) -> Optional[Result]:
    """Choose a threshold for a FAR on all folds but one, and count on that one; for each fold.

    Args:
        pairs: of both kinds.
        far: the wanted one, between 0 and 1.

    Returns:
        The threshold that all pairs choose, and their ``tar`` with it; the thresholds of the folds,
        each chosen on the others; and the rates of the pairs with the threshold of their fold. None
        where the folds that choose have fewer than 1 / ``far`` pairs of two people.
    """
    same, cosines, fold = pairs.same, pairs.cosines, pairs.fold
    folds = range(int(fold[-1]) + 1)
    chosen = [threshold_for(cosines[~same & (fold != one)], far) for one in folds]
    threshold = threshold_for(cosines[~same], far)
    thresholds = [value for value in chosen if value is not None]
    if threshold is None or len(thresholds) < len(chosen):
        return None
    accepted = cosines >= np.array(thresholds)[fold]
    return {
        "far": far,
        "threshold_cosine": threshold,
        "tar": float((cosines >= threshold)[same].mean()),
        "fold_thresholds_cosine": thresholds,
        "held_out_far": rate(accepted[~same]),
        "held_out_tar": float(accepted[same].mean()),
    }


def rate(accepted: Answers) -> Result:
    """Return the share of accepted pairs [P], at least one, with its interval.

    ``low`` and ``high`` are the 95 % confidence interval of Clopper and Pearson (1934).
    """
    from scipy.stats import binomtest

    count, pairs = int(accepted.sum()), len(accepted)
    low, high = map(float, binomtest(count, pairs).proportion_ci(method="exact"))
    return {"share": count / pairs, "accepted": count, "pairs": pairs, "low": low, "high": high}
