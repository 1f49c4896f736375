from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel import grouping


@pytest.mark.parametrize(
    ("measured", "groups"),
    [
        ((100, 100, 100, 100), ((0, 1, 2, 3),)),
        ((25, 100, 24.6, 98), ((1, 3), (0, 2))),
        ((100, 100, 25, 25), ((0, 1), (2, 3))),
        ((400, 396, 203, 199, 99, 101), ((0, 1), (2, 3), (4, 5))),
        ((100, 50), ((0,), (1,))),
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


@pytest.mark.parametrize(
    ("hosts", "speeds", "count", "placed"),
    [
        ("ab", (50, 100), 2, [("b", 100), ("a", 50)]),
        ("abc", (50, 100, 70), 2, [("b", 100), ("c", 70)]),
        # The workers of a machine together; equal machines in their order.
        ("aabc", (50, 60, 100, 100), 3, [("a", 110), ("b", 100), ("c", 100)]),
        # More servers than machines share the speed of theirs.
        ("ab", (50, 100), 3, [("b", 50), ("a", 50), ("b", 50)]),
        ("aa", (50, 60), 1, [("a", 110)]),
    ],
)
def test_servers_are_on_the_fastest_machines_first(hosts, speeds, count, placed):
    assert grouping.servers(hosts, speeds, count) == placed
