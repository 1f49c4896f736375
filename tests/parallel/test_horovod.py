"""How ranks in groups find each other."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest

from parallel.horovod import rendezvous
from tests.support.stranger import AS_ROOT, answer_to_a_stranger

ROOT = Path(__file__).resolve().parents[2]
KEYS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


def test_ranks_are_the_workers_in_whatever_order_their_hosts_come() -> None:
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


def test_it_listens_on_one_address_until_it_is_left() -> None:
    def status(host: str) -> int:
        url = f"http://{host}:{port}/scope/key"
        request = urllib.request.Request(url, data=b"x", method="PUT")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status

    with rendezvous("127.0.0.1", "lo", ["a", "a"]) as ranks:
        assert ranks[0]["HOROVOD_GLOO_IFACE"] == "lo"
        port = ranks[0]["HOROVOD_GLOO_RENDEZVOUS_PORT"]
        assert status("127.0.0.1") == 200
        with pytest.raises(URLError):
            status("127.0.0.2")
    with pytest.raises(URLError):
        status("127.0.0.1")


@AS_ROOT
def test_it_does_not_answer_other_users() -> None:
    with rendezvous("127.0.0.1", "lo", ["a", "a"]) as ranks:
        assert answer_to_a_stranger(int(ranks[0]["HOROVOD_GLOO_RENDEZVOUS_PORT"])) == b""


def test_a_launcher_imports_no_mxnet() -> None:
    """Which sets OMP_NUM_THREADS and other variables that workers would inherit."""
    code = (
        "import os, sys; before = dict(os.environ); from parallel.horovod import rendezvous\n"
        "with rendezvous('127.0.0.1', 'lo', ['a']): pass\n"
        "print('mxnet' in sys.modules, os.environ == before)"
    )
    said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert said == "False True\n"
