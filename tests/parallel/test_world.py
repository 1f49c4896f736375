"""Worlds of groups, and the world of one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from parallel import world as world_module
from parallel.world import HorovodWorld, LoneWorld, World, join_ranks
from runtime.mxnet import mx
from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.thorough
@pytest.mark.launcher
def test_the_ranks_of_a_group_have_a_world_of_their_own(tmp_path: Path) -> None:
    # Other groups, one of all ranks, and again the first groups.
    formations = [((0, 2), (1,)), ((0,), (1, 2)), ((0, 1, 2),), ((0, 2), (1,))]
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    words = [
        word
        for groups in formations
        for word in ("then", *(",".join(map(str, group)) for group in groups))
    ]
    finished = subprocess.run(
        [horovodrun, "--gloo", "-np", "3", "-H", "localhost:3", sys.executable, "-m",
         "tests.parallel.group_ranks", str(tmp_path), *words[1:]],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
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
