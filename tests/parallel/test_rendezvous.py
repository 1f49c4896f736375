from __future__ import annotations

import urllib.request
from urllib.error import URLError

import pytest

from parallel.world import rendezvous
from tests.support.stranger import AS_ROOT, answer_to_a_stranger

KEYS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


def test_ranks_are_the_workers_in_whatever_order_their_hosts_come():
    with rendezvous("127.0.0.1", "lo", ["a", "b", "a", "c", "a", "b"]) as ranks:
        numbers = [tuple(int(one[f"HOROVOD_{key}"]) for key in KEYS) for one in ranks]
    assert numbers == [
        (0, 6, 0, 3, 0, 3),
        (1, 6, 0, 2, 1, 3),
        (2, 6, 1, 3, 0, 2),
        (3, 6, 0, 1, 2, 3),
        (4, 6, 2, 3, 0, 1),
        (5, 6, 1, 2, 1, 2),
    ]
    assert [one["HOROVOD_HOSTNAME"] for one in ranks] == ["a", "b", "a", "c", "a", "b"]


def test_it_listens_on_one_address_until_it_is_left():
    with rendezvous("127.0.0.1", "lo", ["a", "a"]) as ranks:
        assert ranks[0]["HOROVOD_GLOO_IFACE"] == "lo"
        port = ranks[0]["HOROVOD_GLOO_RENDEZVOUS_PORT"]
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/scope/key", data=b"x", method="PUT"
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200
        with pytest.raises(URLError):
            urllib.request.urlopen(f"http://127.0.0.2:{port}/scope/key", timeout=10)
    with pytest.raises(URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/scope/key", timeout=10)


@AS_ROOT
def test_it_does_not_answer_other_users():
    with rendezvous("127.0.0.1", "lo", ["a", "a"]) as ranks:
        assert answer_to_a_stranger(int(ranks[0]["HOROVOD_GLOO_RENDEZVOUS_PORT"])) == b""
