"""A world that tells waiting for other ranks from the work of this one.

A collective begins when the arrays of all ranks are there. What passes before is this rank's own
work, or that of others: so the time counts as communication from the moment at which this rank's
own array is ready. Reductions that are meant to run behind other work are not waited for at once:
the head asks for its own when it needs it, the backbone's are waited for in ``Stopwatch.settle``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parallel.world import PLAIN, Wire, World
from training.log.stopwatch import COMMUNICATION, Stopwatch

# The head goes on while these are reduced; it needs all others at once.
OVERLAPPING = frozenset({"head.gradient"})


class TimedWorld:
    """A world whose collectives count as communication from when this rank's own part is ready."""

    def __init__(self, world: World, stopwatch: Stopwatch) -> None:
        """Args: the ranks, and where the time is counted."""
        self._world = world
        self._stopwatch = stopwatch
        self.rank, self.size, self.local_rank = world.rank, world.size, world.local_rank

    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        """See ``World.allreduce``; returns when it is done unless it is one of ``OVERLAPPING``."""
        ready = _marker(array)
        self._world.allreduce(array, name, op)
        if name not in OVERLAPPING:
            ready.wait_to_read()
            self.wait(array)
        return array

    def wait(self, array: Any) -> None:
        """See ``World.wait``."""
        with self._stopwatch.part(COMMUNICATION):
            self._world.wait(array)

    def allreduce_all(
        self, arrays: Sequence[Any], name: str, op: str = "sum", wire: Wire = PLAIN
    ) -> None:
        """See ``World.allreduce_all``; ``arrays[0]`` is the one that becomes ready last.

        So it is with the gradients of a backward pass, which ends at the first layer.
        """
        ready = _marker(arrays[0])
        self._world.allreduce_all(arrays, name, op, wire)
        self._defer(ready, arrays)

    def allgather(self, array: Any, name: str) -> Any:
        """See ``World.allgather``."""
        array.wait_to_read()
        with self._stopwatch.part(COMMUNICATION):
            return self._world.allgather(array, name)

    def broadcast(self, array: Any, name: str) -> None:
        """See ``World.broadcast``."""
        self._world.broadcast(array, name)

    def broadcast_object(self, value: Any, name: str) -> Any:
        """See ``World.broadcast_object``."""
        return self._world.broadcast_object(value, name)

    def barrier(self) -> None:
        """See ``World.barrier``."""
        with self._stopwatch.part(COMMUNICATION):
            self._world.barrier()

    def _defer(self, ready: Any, arrays: Sequence[Any]) -> None:
        self._stopwatch.defer(ready.wait_to_read)
        for array in arrays:
            self._stopwatch.defer(array.wait_to_read, COMMUNICATION)


def _marker(array: Any) -> Any:
    """An array that is ready when ``array`` is, and does not wait for its reduction: a copied row.

    The engine runs the operators on an array in the order in which they are queued, and this copy
    is queued before the reduction.
    """
    return array[:1].copy()
