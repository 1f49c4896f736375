"""The accuracies of InsightFace's ``verification.py`` and ``lfw.py``, and their command lines.

They are what the programs gave for ``synthetic()``, run with their sources.
"""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.features import normalized
from evaluation.folds import distances_of_pairs
from evaluation.verification import verify

ACCURACIES = {10: (0.919178, 0.025616), 7: (0.919206, 0.018360), 2: (0.912259, 0.004076),
              1: (0.919242, 0.0)}  # fmt: skip
"""Mean and deviation by the number of folds."""


def synthetic() -> tuple[np.ndarray, np.ndarray]:
    """Embeddings [2 P, D] and answers [P] of pairs that no fold has equally many of."""
    rng = np.random.default_rng(7)
    same = rng.random(1003) < 0.4
    first = rng.normal(0, 1, (1003, 16))
    noise, other = rng.normal(0, 1.3, first.shape), rng.normal(size=first.shape)
    second = np.where(same[:, None], first + noise, other)
    rows = np.stack([first, second], axis=1).reshape(-1, 16)
    return normalized(rows.astype(np.float32)), same


@pytest.mark.parametrize("folds", ACCURACIES)
def test_accuracies_are_those_of_the_programs(folds: int) -> None:
    embeddings, same = synthetic()
    result = verify(embeddings, same, xnorm=1.0, folds=folds)
    found = (result.accuracy, result.accuracy_std)
    assert found == pytest.approx(ACCURACIES[folds], abs=1e-6)


def test_a_single_fold_chooses_its_own_rate() -> None:
    """As many pairs of two people as the rate allows are accepted, of all of them."""
    embeddings, same = synthetic()
    result = verify(embeddings, same, xnorm=1.0, folds=1)
    distances, _ = distances_of_pairs(embeddings, same, 1)
    others = np.sort(distances[~same])
    threshold = others[int(1e-3 * len(others))]
    assert result.tar_at_far[1e-3] == pytest.approx((distances[same] < threshold).mean(), abs=0.01)
