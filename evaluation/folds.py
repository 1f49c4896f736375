"""The protocol of verification: distances of pairs, and thresholds that are chosen on other folds.

The pairs of a set are cut into consecutive parts in file order. Each is judged with the threshold
that is best on all others (Huang et al. 2007, Labeled Faces in the Wild), of the same grid as
InsightFace's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.float32]

FOLDS = 10
# Squared distances of unit vectors lie between 0 and 4.
ACCURACY_THRESHOLDS = np.arange(400) / 100
ROC_THRESHOLDS = np.arange(4000) / 1000


def distances_of_pairs(
    embeddings: Features, same: NDArray[np.bool_], folds: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the squared distance [P] and the fold [P] of each pair.

    Args:
        embeddings: L2-normalized [2 P, D]; rows ``2 i`` and ``2 i + 1`` are pair ``i``.
        same: whether pair ``i`` shows one person [P].
        folds: at most P.
    """
    assert len(embeddings) == 2 * len(same), (len(embeddings), len(same))
    first, second = embeddings[0::2].astype(np.float64), embeddings[1::2].astype(np.float64)
    return np.square(first - second).sum(axis=1), folds_of(len(same), folds)


def folds_of(pairs: int, folds: int) -> NDArray[np.int64]:
    """Return the fold [P] of each of so many pairs: consecutive parts, of equal size or nearly."""
    sizes = [len(part) for part in np.array_split(np.empty(pairs), folds)]
    return np.repeat(np.arange(folds), sizes)


def accuracies_of_folds(
    distances: NDArray[np.float64], same: NDArray[np.bool_], fold: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the accuracy and the threshold of each fold."""
    folds = fold[-1] + 1
    accepted = _accepted(distances[same], fold[same], folds, ACCURACY_THRESHOLDS)
    falsely_accepted = _accepted(distances[~same], fold[~same], folds, ACCURACY_THRESHOLDS)
    others = np.bincount(fold[~same], minlength=folds)
    right = accepted + others[:, np.newaxis] - falsely_accepted
    best = _of_others(right).argmax(axis=1)
    right_at_best = np.take_along_axis(right, best[:, np.newaxis], axis=1)[:, 0]
    return right_at_best / np.bincount(fold), ACCURACY_THRESHOLDS[best]


def true_accept_rate(
    distances: NDArray[np.float64], same: NDArray[np.bool_], fold: NDArray[np.int64], far: float
) -> float:
    """Return the share of same-person pairs accepted at a false accept rate of ``far``."""
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
    first_above = np.searchsorted(thresholds, distances, side="right")
    counts = np.zeros((folds, len(thresholds) + 1), np.int64)
    np.add.at(counts, (fold, first_above), 1)
    return counts.cumsum(axis=1)[:, :-1]
