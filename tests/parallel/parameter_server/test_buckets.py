from __future__ import annotations

import numpy as np
import pytest

from parallel.parameter_server.buckets import Bucket, plan, table_key

SIZES = [500, 20, 25_000, 50, 100_000, 500, 5_000, 10]
DECAYS = [1.0, 0.0] * 4


def elements(buckets: tuple[Bucket, ...]) -> list[tuple[int, int]]:
    return [
        (one.parameter, element)
        for bucket in buckets
        for one in bucket.slices
        for element in range(one.start, one.stop)
    ]


@pytest.mark.parametrize(("servers", "largest"), [(1, 1 << 24), (2, 7001), (3, 1 << 24), (8, 7001)])
def test_every_element_is_in_one_bucket(servers: int, largest: int) -> None:
    buckets = plan(SIZES, DECAYS, servers, largest=largest)
    found = elements(buckets)
    assert len(found) == len(set(found)) == sum(SIZES)
    assert max(bucket.size for bucket in buckets) <= largest
    for bucket in buckets:
        assert {DECAYS[one.parameter] for one in bucket.slices} == {bucket.decay}
    # Keys go to their servers as MXNet sends them.
    keys = [bucket.key for bucket in buckets]
    assert len(set(keys)) == len(keys)
    assert all(bucket.key * 9973 % servers == bucket.server for bucket in buckets)
    table = table_key(buckets, servers)
    assert table not in keys and table * 9973 % servers == buckets[0].server


@pytest.mark.parametrize(
    ("speeds", "order"),
    [((1.0, 5.0, 2.0), [1, 2, 0]), ((1.0, 0.25), [0, 1]), ((1.0, 1.0), [0, 1]), ((), [0, 1, 2])],
)
def test_servers_keep_elements_by_their_speeds_the_fastest_the_first_layers(
    speeds: tuple[float, ...], order: list[int]
) -> None:
    buckets = plan(SIZES, [1.0] * len(SIZES), len(order), speeds)
    assert list(dict.fromkeys(bucket.server for bucket in buckets)) == order
    assert elements(buckets) == sorted(elements(buckets))
    for decays in ([1.0] * len(SIZES), DECAYS):
        loads = np.zeros(len(order))
        for bucket in plan(SIZES, decays, len(order), speeds):
            loads[bucket.server] += bucket.size
        shares = np.array(speeds or [1.0] * len(order))
        np.testing.assert_allclose(loads, shares / shares.sum() * sum(SIZES), atol=1)


def test_a_server_may_have_no_elements() -> None:
    assert elements(plan([2], [1.0], 4)) == [(0, 0), (0, 1)]
