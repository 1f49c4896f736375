"""Worlds of groups, how their ranks find each other, the world of one, and the stopwatch."""

import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.error import URLError

import numpy as np
import pytest

from parallel import world as world_module
from parallel.horovod import rendezvous
from parallel.world import OVERLAPPING, HorovodWorld, LoneWorld, TimedWorld, World, join_ranks
from runtime.errors import ConfigError
from runtime.mxnet import mx
from runtime.stopwatch import BACKBONE, COMMUNICATION, HEAD, PARTS, WAITING, Stopwatch
from tests.support.launch import finish, ranks
from tests.support.stranger import AS_ROOT, answer_to_a_stranger
from tests.support.thread_world import run_ranks

COMPUTING, EXCHANGING = 1.0, 10.0


def answers(world: World, number: int):
    total, first = mx.nd.array([number]), mx.nd.array([number])
    world.allreduce(total, "total")
    several = [mx.nd.array([number, 1]), mx.nd.array([2.0 * number])]
    world.allreduce_all(several, "several")
    world.broadcast(first, "first")
    return {
        "rank": [world.rank, world.size],
        "total": total.asscalar().item(),
        "several": np.concatenate([array.asnumpy() for array in several]).tolist(),
        "gathered": world.allgather(mx.nd.array([number]), "gathered").asnumpy().tolist(),
        "first": first.asscalar().item(),
        "object": world.broadcast_object({"from": number}, "object"),
        "objects": world.gather_objects("x" * number, "objects"),
    }


def main(folder: Path, words: str) -> None:
    """Write what a rank gets from collectives of its last group, as in "0,2 1 then 0 1,2"."""
    number = int(os.environ["HOROVOD_RANK"])
    first, *others = (
        [list(map(int, group.split(","))) for group in groups.split()]
        for groups in words.split("then")
    )
    world = HorovodWorld(first, regroups=bool(others))
    answers(world, number)
    for groups in others:
        world.all_ranks().barrier()
        world.regroup(groups)
        result = answers(world, number)
    result["all"] = answers(world.all_ranks(), number)["gathered"]
    world.barrier()
    # The end of one rank is that of all groups: no rank may be in a collective any more.
    (folder / str(number)).write_text(json.dumps(result))
    while not all((folder / str(int(other))).exists() for other in result["all"]):
        time.sleep(0.05)
    world.close()


@pytest.mark.thorough
@pytest.mark.launcher
def test_the_ranks_of_a_group_have_a_world_of_their_own(tmp_path: Path) -> None:
    formations = "0,2 1 then 0 1,2 then 0,1,2 then 0,2 1"
    module = (sys.executable, "-m", "tests.parallel.test_world")
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
                "objects": ["x" * number for number in group],
                "all": [0, 1, 2],
            }


def test_a_rank_without_a_launcher_has_no_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "HorovodWorld", lambda: None)
    launched = "HOROVOD_RANK HOROVOD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE GROUPING_WORKER"
    for name in launched.split():
        monkeypatch.delenv(name, raising=False)
    assert isinstance(join_ranks(), LoneWorld)
    world_module._check_size(1)
    monkeypatch.setenv("HOROVOD_RANK", "0")
    assert join_ranks() is None
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    world_module._check_size(2)
    with pytest.raises(ConfigError, match="started 2 ranks, but Horovod sees 1; unset HOROVOD_CON"):
        world_module._check_size(1)


def test_horovod_writes_into_arrays_that_are_kept_for_two_updates() -> None:
    """Only the third of a name waits, for the first: its update has been judged by then."""
    world = HorovodWorld.__new__(HorovodWorld)
    world._outputs = {}
    outputs = [Mock() for _ in range(4)]
    for output in outputs:
        world._keep("head.features", output)
    world._keep("head.labels", Mock())
    assert [output.wait_to_read.call_count for output in outputs] == [1, 1, 0, 0]
    assert list(world._outputs["head.features"]) == outputs[2:]


def test_ranks_are_the_workers_in_whatever_order_their_hosts_come() -> None:
    """And the rendezvous, through which they find each other, listens on one address alone."""
    keys = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE HOSTNAME GLOO_IFACE".split()

    def status(host: str) -> int:
        url = f"http://{host}:{found[0]['HOROVOD_GLOO_RENDEZVOUS_PORT']}/scope/key"
        request = urllib.request.Request(url, data=b"x", method="PUT")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status

    with rendezvous("127.0.0.1", "lo", ["a", "b", "a", "c", "a", "b"]) as found:
        assert [" ".join(one[f"HOROVOD_{key}"] for key in keys) for one in found] == [
            "0 6 0 3 0 3 a lo",
            "1 6 0 2 1 3 b lo",
            "2 6 1 3 0 2 a lo",
            "3 6 0 1 2 3 c lo",
            "4 6 2 3 0 1 a lo",
            "5 6 1 2 1 2 b lo",
        ]
        assert status("127.0.0.1") == 200
        with pytest.raises(URLError):
            status("127.0.0.2")
    with pytest.raises(URLError):
        status("127.0.0.1")


@AS_ROOT
def test_a_rendezvous_does_not_answer_other_users() -> None:
    with rendezvous("127.0.0.1", "lo", ["a", "a"]) as ranks:
        assert answer_to_a_stranger(int(ranks[0]["HOROVOD_GLOO_RENDEZVOUS_PORT"])) == b""


class Machine:
    """A clock, and collectives on arrays that are there when the clock says so, as MXNet's are."""

    rank, size, local_rank = 0, 2, 0

    def __init__(self, now=0.0) -> None:
        self.now = now
        self.stopwatch = Stopwatch(lambda: self.now)
        self.world = TimedWorld(self, self.stopwatch)  # type: ignore[arg-type]

    def allreduce(self, array, name: str, op: str = "sum"):
        array.ready_at += EXCHANGING
        return array

    allgather = allreduce

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def allreduce_all(self, arrays, name: str, *_: object) -> None:
        for array in arrays:
            self.allreduce(array, name)

    def seconds(self, part: str) -> list[float]:
        found = self.stopwatch.lap()
        return [found[part], found[COMMUNICATION]]


class Array:
    """Ready after the work queued on it; a copy is ready after the work queued before it."""

    def __init__(self, machine: Machine, ready_at: float) -> None:
        self._machine, self.ready_at = machine, ready_at

    def __getitem__(self, rows: object):
        return self

    def copy(self):
        return Array(self._machine, self.ready_at)

    def wait_to_read(self) -> None:
        self._machine.now = max(self._machine.now, self.ready_at)


@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_computing_does_not_count_as_communication(collective: str) -> None:
    machine = Machine()
    array = Array(machine, COMPUTING)
    with machine.stopwatch.part(HEAD):
        assert getattr(machine.world, collective)(array, "head.maximum") is array
    assert machine.now == COMPUTING + EXCHANGING
    assert machine.seconds(HEAD) == [COMPUTING, EXCHANGING]


def test_a_rank_that_waits_for_labels_is_in_communication() -> None:
    """In every update: the watchdog asks for the part. A device is not waited for."""
    machine = Machine()
    waits = []
    machine.stopwatch.sample()
    for context in (mx.cpu(), mx.cpu(1)):

        def wait(context=context) -> None:
            waits.append((context, machine.stopwatch.current))

        with machine.stopwatch.part(HEAD):
            array = SimpleNamespace(context=context, wait_to_read=wait, ready_at=0.0)
            machine.world.allgather(array, "head.labels")
    assert waits == [(mx.cpu(), HEAD), (mx.cpu(), COMMUNICATION)]


def test_an_overlapped_reduction_does_not_count() -> None:
    machine = Machine()
    (name,) = OVERLAPPING
    with machine.stopwatch.part(HEAD):
        array = machine.world.allreduce(Array(machine, COMPUTING), name)
        assert machine.now == 0.0, "the head had to wait"
        machine.now += COMPUTING + 0.75 * EXCHANGING
        machine.world.wait(array)
    assert machine.seconds(HEAD) == [COMPUTING + 0.75 * EXCHANGING, 0.25 * EXCHANGING]


def test_gradients_are_reduced_behind_the_backward_pass() -> None:
    """Those of the last layer are ready, and reduced, long before those of the first."""
    machine = Machine()
    first, last = Array(machine, 3 * EXCHANGING), Array(machine, COMPUTING)
    with machine.stopwatch.part(BACKBONE):
        machine.world.allreduce_all([first, last], "backbone.gradient")
    assert machine.now == 0.0
    machine.stopwatch.settle()
    assert machine.seconds(BACKBONE) == [3 * EXCHANGING, EXCHANGING]


def test_results_are_those_of_the_ranks() -> None:
    """In updates that are measured and in others."""

    def timed(plain) -> list[list[float]]:
        stopwatch = Stopwatch()
        world, found = TimedWorld(plain, stopwatch), []
        for _ in range(2):
            own = mx.nd.array([plain.rank + 1.0, 2.0])
            reduced, several = own.copy(), own.copy()
            found += [world.allgather(own, "a"), world.allreduce(reduced, "b"), several]
            world.allreduce_all([several], "c")
            stopwatch.settle()
            stopwatch.sample()
        return [array.asnumpy().tolist() for array in found]

    for result in run_ranks(2, timed):
        assert result == [[1.0, 2.0, 2.0, 2.0], [3.0, 4.0], [3.0, 4.0]] * 2


def test_seconds_count_for_the_innermost_part() -> None:
    clock = Machine(50.0)
    stopwatch = clock.stopwatch
    clock.wait(100.0)
    with stopwatch.part(HEAD):
        clock.wait(1.0)
        with pytest.raises(StopIteration), stopwatch.part(COMMUNICATION):
            clock.wait(10.0)
            raise StopIteration
        clock.wait(2.0)
    with stopwatch.part(BACKBONE):
        # Waits that are left to the end of the update run in their order.
        stopwatch.defer(lambda: clock.wait(2.0))
        stopwatch.defer(lambda: clock.wait(3.0), COMMUNICATION)
        stopwatch.defer(lambda: clock.wait(4.0))
    assert clock.now == 163.0
    stopwatch.settle()
    stopwatch.settle()
    assert stopwatch.lap() == {WAITING: 0.0, BACKBONE: 6.0, HEAD: 3.0, COMMUNICATION: 13.0}


def test_a_sample_stands_for_its_interval() -> None:
    """Outside of it nothing waits, and what is queued there counts for nothing."""
    clock = Machine(50.0)
    stopwatch = clock.stopwatch
    waits: list[float] = []
    array = SimpleNamespace(wait_to_read=lambda: waits.append(clock.now))

    def update(seconds: float) -> None:
        with stopwatch.part(HEAD):
            clock.wait(seconds)
            stopwatch.wait(array)
            stopwatch.defer(lambda: waits.append(clock.now), COMMUNICATION)
        with stopwatch.part(BACKBONE):
            clock.wait(2.0)
        clock.wait(1.0)
        stopwatch.settle()

    stopwatch.sample()
    update(97.0)
    assert waits == [] and not stopwatch.measures
    stopwatch.begin_sample()
    update(1.0)
    assert waits == [151.0, 154.0]
    assert stopwatch.lap(80.0) == {WAITING: 0.0, BACKBONE: 40.0, HEAD: 20.0, COMMUNICATION: 0.0}
    assert not stopwatch.measures and stopwatch.lap(80.0) == dict.fromkeys(PARTS, 0.0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), " ".join(sys.argv[2:]))
