"""A world that times communication apart from this rank's own work.

A collective begins when the arrays of all ranks are ready. Until this rank's array is ready, the
time is its own work; after that it counts as communication. Reductions that are meant to overlap
with other work are not waited for at once: the head waits for its gradient when it needs it, the
backbone's gradients are waited for in ``Stopwatch.settle``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from parallel.world import PLAIN, Wire, World
from training.log.stopwatch import COMMUNICATION, Stopwatch

# The head computes while these are reduced; it needs the results of all others at once.
OVERLAPPING = frozenset({"head.gradient"})


class TimedWorld(World):
    """Counts a collective as communication from the moment this rank's own array is ready."""

    def __init__(self, world: World, stopwatch: Stopwatch) -> None:
        self._world = world
        self._stopwatch = stopwatch
        self.rank, self.size, self.local_rank = world.rank, world.size, world.local_rank

    @override
    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        ready = _marker(array)
        self._world.allreduce(array, name, op)
        if name not in OVERLAPPING:
            ready.wait_to_read()
            self.wait(array)
        return array

    @override
    def wait(self, array: Any) -> None:
        with self._stopwatch.part(COMMUNICATION):
            self._world.wait(array)

    @override
    def allreduce_all(
        self, arrays: Sequence[Any], name: str, op: str = "sum", wire: Wire = PLAIN
    ) -> None:
        # These are gradients: the backward pass ends at the first layer, so arrays[0] is the last
        # to become ready.
        ready = _marker(arrays[0])
        self._world.allreduce_all(arrays, name, op, wire)
        self._stopwatch.defer(ready.wait_to_read)
        for array in arrays:
            self._stopwatch.defer(array.wait_to_read, COMMUNICATION)

    @override
    def allgather(self, array: Any, name: str) -> Any:
        array.wait_to_read()
        with self._stopwatch.part(COMMUNICATION):
            return self._world.allgather(array, name)

    @override
    def broadcast(self, array: Any, name: str) -> None:
        self._world.broadcast(array, name)

    @override
    def broadcast_object(self, value: Any, name: str) -> Any:
        return self._world.broadcast_object(value, name)

    @override
    def barrier(self) -> None:
        with self._stopwatch.part(COMMUNICATION):
            self._world.barrier()


def _marker(array: Any) -> Any:
    """A copied row, which is ready when ``array`` is computed and before it is reduced.

    MXNet's engine runs the operators on an array in the order in which they are queued, and this
    copy is queued before the reduction.
    """
    return array[:1].copy()
