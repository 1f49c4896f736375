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


@pytest.mark.parametrize("servers", [1, 2, 3, 8])
@pytest.mark.parametrize("largest", [1 << 24, 7_001])
def test_every_element_is_in_one_bucket(servers: int, largest: int) -> None:
    buckets = plan(SIZES, DECAYS, servers, largest=largest)
    found = elements(buckets)
    assert len(found) == len(set(found)) == sum(SIZES)
    assert max(bucket.size for bucket in buckets) <= largest
    for bucket in buckets:
        assert {DECAYS[one.parameter] for one in bucket.slices} == {bucket.decay}


@pytest.mark.parametrize("servers", [1, 2, 3, 8])
def test_keys_go_to_their_servers_as_mxnet_sends_them(servers: int) -> None:
    buckets = plan(SIZES, DECAYS, servers)
    keys = [bucket.key for bucket in buckets]
    assert len(set(keys)) == len(keys)
    assert all(bucket.key * 9973 % servers == bucket.server for bucket in buckets)
    table = table_key(buckets, servers)
    assert table not in keys and table * 9973 % servers == buckets[0].server


@pytest.mark.parametrize("speeds", [(1.0, 1.0), (1.0, 0.25), (2.0, 3.0, 5.0)])
def test_servers_keep_elements_in_proportion_to_their_speeds(speeds: tuple[float, ...]) -> None:
    buckets = plan(SIZES, DECAYS, len(speeds), speeds)
    loads = np.zeros(len(speeds))
    for bucket in buckets:
        loads[bucket.server] += bucket.size
    expected = np.array(speeds) / sum(speeds) * sum(SIZES)
    np.testing.assert_allclose(loads, expected, atol=1)


@pytest.mark.parametrize(
    ("speeds", "order"), [((1.0, 5.0, 2.0), [1, 2, 0]), ((2.0, 1.0), [0, 1]), ((), [0, 1, 2])]
)
def test_the_fastest_server_keeps_the_first_layers(speeds, order: list[int]) -> None:
    buckets = plan(SIZES, [1.0] * len(SIZES), len(order), speeds)
    assert list(dict.fromkeys(bucket.server for bucket in buckets)) == order
    assert elements(buckets) == sorted(elements(buckets))


def test_a_server_may_have_no_elements() -> None:
    assert elements(plan([2], [1.0], 4)) == [(0, 0), (0, 1)]
