"""Communication is what passes between this rank's own part and the result of all ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from parallel.world import OVERLAPPING, TimedWorld
from runtime.mxnet import mx
from runtime.stopwatch import BACKBONE, COMMUNICATION, HEAD, Stopwatch
from tests.support.thread_world import run_ranks

COMPUTING, EXCHANGING = 1.0, 10.0


class Machine:
    """A clock, and collectives on arrays that are there when the clock says so, as MXNet's are."""

    rank, size, local_rank = 0, 2, 0

    def __init__(self) -> None:
        self.now = 0.0
        self.stopwatch = Stopwatch(lambda: self.now)
        self.world = TimedWorld(self, self.stopwatch)  # type: ignore[arg-type]

    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        array.ready_at += EXCHANGING
        return array

    allgather = allreduce

    def allreduce_all(self, arrays: list[Any], name: str, *_: object) -> None:
        for array in arrays:
            self.allreduce(array, name)


class Array:
    """Ready after the work queued on it; a copy is ready after the work queued before it."""

    def __init__(self, machine: Machine, ready_at: float) -> None:
        self._machine = machine
        self.ready_at = ready_at

    def __getitem__(self, rows: object) -> Array:
        return self

    def copy(self) -> Array:
        return Array(self._machine, self.ready_at)

    def wait_to_read(self) -> None:
        self._machine.now = max(self._machine.now, self.ready_at)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_computing_does_not_count_as_communication(collective: str, machine: Machine) -> None:
    array = Array(machine, COMPUTING)
    with machine.stopwatch.part(HEAD):
        assert getattr(machine.world, collective)(array, "head.maximum") is array
    assert machine.now == COMPUTING + EXCHANGING
    seconds = machine.stopwatch.lap()
    assert (seconds[HEAD], seconds[COMMUNICATION]) == (COMPUTING, EXCHANGING)


def test_a_rank_that_waits_for_labels_is_in_communication(machine: Machine) -> None:
    """In every update: the watchdog asks for the part. A device is not waited for."""
    waits = []
    machine.stopwatch.sample()
    for context in (mx.cpu(), mx.cpu(1)):

        def wait(context=context) -> None:
            waits.append((context, machine.stopwatch.current))

        with machine.stopwatch.part(HEAD):
            array = SimpleNamespace(context=context, wait_to_read=wait, ready_at=0.0)
            machine.world.allgather(array, "head.labels")
    assert waits == [(mx.cpu(), HEAD), (mx.cpu(), COMMUNICATION)]


def test_an_overlapped_reduction_does_not_count(machine: Machine) -> None:
    (name,) = OVERLAPPING
    with machine.stopwatch.part(HEAD):
        array = machine.world.allreduce(Array(machine, COMPUTING), name)
        assert machine.now == 0.0, "the head had to wait"
        machine.now += COMPUTING + 0.75 * EXCHANGING
        machine.world.wait(array)
    seconds = machine.stopwatch.lap()
    assert seconds[HEAD] == COMPUTING + 0.75 * EXCHANGING
    assert seconds[COMMUNICATION] == 0.25 * EXCHANGING


def test_gradients_are_reduced_behind_the_backward_pass(machine: Machine) -> None:
    """Those of the last layer are ready, and reduced, long before those of the first."""
    first, last = Array(machine, 3 * EXCHANGING), Array(machine, COMPUTING)
    with machine.stopwatch.part(BACKBONE):
        machine.world.allreduce_all([first, last], "backbone.gradient")
    assert machine.now == 0.0
    machine.stopwatch.settle()
    seconds = machine.stopwatch.lap()
    assert (seconds[BACKBONE], seconds[COMMUNICATION]) == (3 * EXCHANGING, EXCHANGING)


def test_results_are_those_of_the_ranks() -> None:
    """Whether or not the stopwatch measures."""

    def timed(plain: Any) -> list[list[float]]:
        stopwatch = Stopwatch()
        world, found = TimedWorld(plain, stopwatch), []
        for _ in range(2):
            own = mx.nd.array([plain.rank + 1.0, 2.0])
            reduced, several, first = own.copy(), own.copy(), own.copy()
            found += [world.allgather(own, "a"), world.allgather_uneven(own, "e")]
            found += [world.allreduce(reduced, "b"), several, first]
            world.allreduce_all([several], "c")
            world.broadcast(first, "d")
            world.barrier()
            assert world.broadcast_object(plain.rank, "f") == 0
            stopwatch.settle()
            stopwatch.sample()
        return [array.asnumpy().tolist() for array in found]

    gathered, total, first = [1.0, 2.0, 2.0, 2.0], [3.0, 4.0], [1.0, 2.0]
    for result in run_ranks(2, timed):
        assert result == [gathered, gathered, total, total, first] * 2
