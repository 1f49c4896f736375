from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evaluation.ijb.lists import Pairs
from evaluation.ijb.verification import FALSE_ACCEPT_RATES, cosines_of_pairs, verify
from tests.support import reference_ijb


def check(scores: np.ndarray, same: np.ndarray) -> None:
    found = verify(scores, same)
    points = reference_ijb.curve(scores, same)
    for rate in found.rates:
        far, tar = reference_ijb.accept_rate(points, rate.wanted)
        assert (rate.false_accept_rate, rate.true_accept_rate) == pytest.approx(
            (far, tar), abs=1e-12
        )
        # And it is what the threshold accepts.
        accepted = scores >= rate.threshold
        assert accepted[same].mean() == pytest.approx(rate.true_accept_rate, abs=1e-12)
        assert accepted[~same].mean() == pytest.approx(rate.false_accept_rate, abs=1e-12)
    assert found.area == pytest.approx(reference_ijb.area(points), abs=1e-12)
    assert [rate.wanted for rate in found.rates] == list(FALSE_ACCEPT_RATES)
    assert (found.pairs, found.same) == (len(same), same.sum())


def test_by_hand() -> None:
    """Ten pairs of two people; one of them is more similar than two of one person."""
    others = np.arange(10) / 20
    own = np.array([0.9, 0.8, 0.43, 0.2])
    scores = np.concatenate([others, own])
    found = verify(scores, np.arange(14) >= 10)
    assert found.rates[-1] == (0.1, 0.1, 0.75, 0.43)
    assert found.rates[0] == (1e-6, 0.0, 0.5, 0.8)
    assert found.area == pytest.approx((2 * 10 + 9 + 4.5) / 40)


def test_points_on_a_line_are_left_out_as_in_the_original() -> None:
    """From 0 to 0.5 nothing is gained, so 0 is nearer to 0.1 than any point that is left."""
    scores = np.concatenate([np.arange(10) / 20, [0.9, 0.8, 0.47, 0.22]])
    assert verify(scores, np.arange(14) >= 10).rates[-1] == (0.1, 0.0, 0.75, 0.47)


def test_nothing_is_accepted_before_the_first_other() -> None:
    found = verify(np.array([1.0, 0.5]), np.array([False, True]))
    assert found.rates[0] == (1e-6, 0.0, 0.0, np.inf)


@pytest.mark.parametrize("count", [30, 3000])
def test_equal_the_loops(count: int) -> None:
    rng = np.random.default_rng(count)
    same = rng.random(count) < 0.1
    check(rng.normal(0, 0.1, count) + 0.2 * same, same)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=2, max_size=120))
def test_ties(pairs: list[tuple[int, bool]]) -> None:
    scores, same = np.array([score / 8 for score, _ in pairs]), np.array([one for _, one in pairs])
    assume(same.any() and not same.all())
    check(scores, same)


@pytest.mark.parametrize("block", [1, 7, 512])
def test_cosines_in_blocks(block: int) -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((9, 5))
    first, second = rng.integers(0, 9, (2, 50)).astype(np.int32)
    pairs = Pairs(first, second, np.zeros(50, np.bool_))
    expected = [features[a] @ features[b] for a, b in zip(first, second)]
    assert cosines_of_pairs(features, pairs, block) == pytest.approx(expected, abs=1e-12)
