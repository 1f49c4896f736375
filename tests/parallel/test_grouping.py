from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel import grouping


@pytest.mark.parametrize(
    ("measured", "groups"),
    [
        ((100, 100, 100, 100), ((0, 1, 2, 3),)),
        ((100, 97, 102, 99), ((0, 1, 2, 3),)),
        ((100, 101, 25, 25.3), ((0, 1), (2, 3))),
        ((25, 100, 24.6, 98), ((1, 3), (0, 2))),
        ((100, 100, 25, 25), ((0, 1), (2, 3))),
        ((400, 396, 203, 199, 99, 101), ((0, 1), (2, 3), (4, 5))),
        ((100, 50), ((0,), (1,))),
        ((100, 99), ((0, 1),)),
        ((100,), ((0,),)),
        ((100, 101, 99, 12), ((0, 1, 2), (3,))),
    ],
)
def test_similar_workers_are_a_group_the_fastest_first(measured, groups):
    assert grouping.group(measured) == groups


def test_noise_of_a_few_percent_is_no_structure():
    rng = np.random.default_rng(0)
    for _ in range(20):
        noise: Any = rng.uniform(0.98, 1.02, 6)
        assert grouping.group(noise * 100) == ((0, 1, 2, 3, 4, 5),)
        found = grouping.group(noise * (100, 30, 100, 30, 100, 30))
        assert found == ((0, 2, 4), (1, 3, 5))


def test_shares_follow_the_slowest_of_each_group():
    shares = grouping.shares(((0, 2), (1, 3)), (100, 25, 105, 30))
    parts = [share.end - share.start for share in shares]
    assert parts == pytest.approx([0.4, 0.1, 0.4, 0.1])
    assert shares[0].start == 0 and shares[-1].end == 1
    assert all(one.end == two.start for one, two in zip(shares, shares[1:]))
