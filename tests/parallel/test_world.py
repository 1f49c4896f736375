"""Worlds of groups, how their ranks find each other, and the world of one."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest

from parallel import world as world_module
from parallel.horovod import rendezvous
from parallel.world import HorovodWorld, LoneWorld, World, join_ranks
from runtime.errors import ConfigError
from runtime.mxnet import mx
from tests.support.launch import ROOT, finish, ranks
from tests.support.stranger import AS_ROOT, answer_to_a_stranger

KEYS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


@pytest.mark.thorough
@pytest.mark.launcher
def test_the_ranks_of_a_group_have_a_world_of_their_own(tmp_path: Path) -> None:
    # Other groups, one of all ranks, and again the first groups.
    formations = "0,2 1 then 0 1,2 then 0,1,2 then 0,2 1"
    module = (sys.executable, "-m", "tests.parallel.group_ranks")
    finish(*ranks("--gloo", 3), *module, tmp_path, *formations.split())
    for group in ([0, 2], [1]):
        for rank, number in enumerate(group):
            assert json.loads((tmp_path / str(number)).read_text()) == {
                "rank": [rank, len(group)],
                "total": sum(group),
                "several": [sum(group), len(group), 2 * sum(group)],
                "gathered": group,
                "first": group[0],
                "object": {"from": group[0]},
                "all": [0, 1, 2],
            }


def test_a_lone_world_returns_its_own_values() -> None:
    world: World = LoneWorld(local_rank=2)
    array = mx.nd.array([3.0])
    world.allreduce(array, "a")
    world.allreduce_all([array], "b")
    world.broadcast(array, "c")
    world.wait(array)
    world.barrier()
    assert (world.rank, world.size, world.local_rank) == (0, 1, 2)
    assert array.asscalar() == world.allgather(array, "d").asscalar() == 3
    assert world.broadcast_object("x", "e") == "x"


def test_a_rank_without_a_launcher_has_no_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "HorovodWorld", lambda: None)
    for name in ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "GROUPING_WORKER"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(join_ranks(), LoneWorld)
    monkeypatch.setenv("HOROVOD_RANK", "0")
    assert join_ranks() is None
    # Horovod has to see as many ranks as there are.
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    world_module._check_size(2)
    with pytest.raises(ConfigError, match="started 2 ranks, but Horovod sees 1; unset HOROVOD_CON"):
        world_module._check_size(1)


def test_horovod_writes_into_arrays_that_are_kept_for_two_updates() -> None:
    """Only the third of a name waits, for the first: its update has been judged by then."""

    class Output:
        kept: set[int] = set()
        waits: list[int] = []

        def __init__(self, number: int) -> None:
            self._number = number
            self.kept.add(number)

        def wait_to_read(self) -> None:
            self.waits.append(self._number)

        def __del__(self) -> None:
            self.kept.remove(self._number)

    world = HorovodWorld.__new__(HorovodWorld)
    world._outputs = {}
    for number in range(4):
        world._keep("head.features", Output(number))
        assert Output.kept >= {number, max(number - 1, 0)} and len(Output.kept) <= 2
    world._keep("head.labels", Output(9))
    assert Output.waits == [0, 1] and Output.kept == {2, 3, 9}


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


def test_a_rendezvous_listens_on_one_address_until_it_is_left() -> None:
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
def test_a_rendezvous_does_not_answer_other_users() -> None:
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
