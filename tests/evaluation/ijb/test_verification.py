from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from evaluation.ijb.lists import Pairs
from evaluation.ijb.verification import FALSE_ACCEPT_RATES, cosines_of_pairs, verify
from tests.support import reference_ijb


def test_what_no_threshold_accepts() -> None:
    found = verify(np.array([1.0, 0.5]), np.array([False, True]))
    assert found.rates[0] == (1e-6, 0.0, 0.0, np.inf)


GENERATOR = np.random.default_rng(0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=2, max_size=120))
@example([(int(score), score % 10 == 0) for score in GENERATOR.integers(0, 10**6, 3000)])
def test_equals_the_loops_with_ties(pairs: list[tuple[int, bool]]) -> None:
    scores, same = np.array([score / 8 for score, _ in pairs]), np.array([one for _, one in pairs])
    assume(same.any() and not same.all())
    found = verify(scores, same)
    points = reference_ijb.curve(scores, same)
    for rate in found.rates:
        expected = reference_ijb.accept_rate(points, rate.wanted)
        assert (rate.false_accept_rate, rate.true_accept_rate) == pytest.approx(expected, abs=1e-12)
        # And it is what the threshold accepts.
        accepted = scores >= rate.threshold
        assert accepted[same].mean() == pytest.approx(rate.true_accept_rate, abs=1e-12)
        assert accepted[~same].mean() == pytest.approx(rate.false_accept_rate, abs=1e-12)
    assert found.area == pytest.approx(reference_ijb.area(points), abs=1e-12)
    assert [rate.wanted for rate in found.rates] == list(FALSE_ACCEPT_RATES)
    assert (found.pairs, found.same) == (len(same), same.sum())


@pytest.mark.parametrize("block", [1, 7, 512])
def test_cosines_in_blocks(block: int) -> None:
    features = GENERATOR.standard_normal((9, 5))
    first, second = GENERATOR.integers(0, 9, (2, 50)).astype(np.int32)
    pairs = Pairs(first, second, np.zeros(50, np.bool_))
    expected = [features[a] @ features[b] for a, b in zip(first, second)]
    assert cosines_of_pairs(features, pairs, block) == pytest.approx(expected, abs=1e-12)
