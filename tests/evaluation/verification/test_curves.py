"""ROC, EER, TAR at FAR and thresholds: by hand, by counting, and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from evaluation.verification import curves
from evaluation.verification.curves import hold_out, pairs_of, roc, tar_at, threshold_for
from tests.evaluation.verification.test_verification import bools, embedded

PAIRS = st.lists(st.tuples(st.integers(-9, 9), st.booleans()), min_size=2, max_size=60).filter(
    lambda drawn: len({same for _, same in drawn}) == 2
)


def test_a_curve_by_hand() -> None:
    curve = roc(np.array([0.9, 0.8, 0.7, 0.6]), bools("SDSD"))
    assert curves.area_under(curve) == 0.75 and curves.equal_error_rate(curve) == 0.5
    assert [tar_at(curve, far) for far in (0.4, 0.5, 0.9)] == [None, 1.0, 1.0]


@given(PAIRS, st.sampled_from([0.05, 0.1, 0.2, 0.25, 0.5, 0.9]))
@settings(max_examples=25, deadline=None)
def test_curves_are_what_counting_and_scikit_learn_say(drawn, wanted: float) -> None:
    scores, same = (np.array(column) for column in zip(*drawn))
    cosines = scores / 10
    curve, different = roc(cosines, same), cosines[~same]
    gaps = cosines[same][:, None] - different
    assert curves.area_under(curve) == pytest.approx(np.mean((gaps > 0) + 0.5 * (gaps == 0)))
    assert curves.area_under(curve) == pytest.approx(roc_auc_score(same, cosines))
    far, tar, _ = roc_curve(same, cosines, drop_intermediate=False)
    error = curves.equal_error_rate(curve)
    assert 0 <= error <= 1 and np.interp(error, far, tar) >= 1 - error - 1e-9
    found = tar_at(curve, wanted)
    assert (found is None) == (wanted * len(different) < 1 - 1e-9)
    assert found is None or found == tar[far <= wanted + 1e-9].max()
    # A lower threshold would accept too many.
    threshold = threshold_for(different, wanted)
    if threshold is None:
        assert wanted * len(different) < 1
    else:
        assert np.mean(different >= threshold) <= wanted + 1e-9
        assert np.mean(different >= different[different < threshold].max()) > wanted


@pytest.mark.parametrize(
    ("cosines", "far", "threshold"),
    [
        # In the middle, on which no pair lies.
        ([0.1, 0.5, 0.3, 0.2], 0.25, 0.4),
        # Equal ones are accepted together; a threshold of theirs would do so.
        ([0.5, 0.5, 0.3, 0.2], 0.25, 0.5001),
        ([0.5, 0.4], 0.25, None),
        # Where the middle has more digits, it is rounded, but not to where too many are accepted.
        ([0.12344, 0.12346, 0.0], 0.34, 0.1235),
        ([0.12351, 0.12356, 0.0], 0.34, 0.1236),
    ],
)
def test_thresholds_by_hand(cosines: list[float], far: float, threshold: float) -> None:
    assert threshold_for(np.array(cosines), far) == threshold


def test_the_printed_threshold_is_the_one_that_was_counted() -> None:
    for cosines in np.random.default_rng(0).uniform(-1, 1, (200, 30)):
        threshold = threshold_for(cosines, 0.1)
        assert threshold is not None and float(f"{threshold:.4f}") == threshold
        assert np.sum(cosines >= threshold) <= 3
    # 0.001 * 3000 is 3, of which rounding may make less.
    threshold = threshold_for(np.arange(3000) / 3000, 0.001)
    assert threshold is not None and np.sum(np.arange(3000) / 3000 >= threshold) == 3


def test_the_interval_of_clopper_and_pearson() -> None:
    # Of 0 in n, the upper end is 1 - 0.025^(1/n).
    found = curves.rate(np.zeros(100, np.bool_))
    assert (found.low, found.high) == pytest.approx((0, 1 - 0.025**0.01))


def test_held_out_pairs_do_not_choose_their_threshold() -> None:
    cosines = np.where(bools("SD" * 20), 0.9, np.arange(40) / 100)
    pairs = pairs_of(embedded(*(2 - 2 * cosines)), bools("SD" * 20), folds=2)
    found = hold_out(pairs, 0.1)
    assert found is not None
    # Of ten pairs in each fold one may be accepted: 0.01 ... 0.19 and 0.21 ... 0.39.
    assert found.fold_thresholds_cosine == pytest.approx((0.38, 0.18))
    assert (found.held_out_far.accepted, found.held_out_far.pairs) == (10, 20)
    assert found.threshold_cosine == pytest.approx(0.36) and found.held_out_tar == 1.0
    assert hold_out(pairs, 0.06) is None
