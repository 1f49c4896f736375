"""Ranks as threads of one process: the collectives of a World without Horovod.

One rank computes at a time (the others wait for the lock), because the threading layer of Numba
may not be entered twice; the order in which ranks run does not matter to a correct program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parallel.world import PLAIN, Wire
from runtime.mxnet import mx

REDUCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max}


class _Meeting:
    """Where the ranks of one world exchange values."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.computing = threading.Lock()
        self.values: list[Any] = [None] * size
        self.names: list[str] = [""] * size


class ThreadWorld:
    """One rank of a world of threads."""

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = rank
        self._meeting = meeting

    def _exchange(self, value: Any, name: str) -> list[Any]:
        meeting = self._meeting
        meeting.values[self.rank] = value
        meeting.names[self.rank] = name
        meeting.computing.release()
        try:
            meeting.barrier.wait()
            values, names = list(meeting.values), set(meeting.names)
            meeting.barrier.wait()
        finally:
            meeting.computing.acquire()
        assert names == {name}, f"ranks met in different collectives: {names}"
        return values

    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        values = self._exchange(array.asnumpy(), name)
        array[:] = REDUCTIONS[op](np.stack(values), axis=0).astype(array.dtype)
        return array

    def wait(self, array: Any) -> None:
        """Everything is reduced at once here."""

    def allreduce_all(
        self, arrays: Sequence[Any], name: str, op: str = "sum", wire: Wire = PLAIN
    ) -> None:
        assert wire == PLAIN, "threads send nothing"
        for index, array in enumerate(arrays):
            self.allreduce(array, f"{name}.{index}", op)

    def allgather(self, array: Any, name: str) -> Any:
        values = self._exchange(array.asnumpy(), name)
        return mx.nd.array(np.concatenate(values), dtype=array.dtype)

    def broadcast(self, array: Any, name: str) -> None:
        array[:] = self._exchange(array.asnumpy(), name)[0]

    def broadcast_object(self, value: Any, name: str) -> Any:
        return self._exchange(value, name)[0]

    def barrier(self) -> None:
        self._exchange(None, "barrier")


def run_ranks(size: int, rank_main: Callable[[ThreadWorld], Any]) -> list[Any]:
    """Run ``rank_main`` on ``size`` ranks; returns their results, or raises the first error."""
    meeting = _Meeting(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        with meeting.computing:
            try:
                results[rank] = rank_main(ThreadWorld(rank, size, meeting))
            except BaseException as error:
                errors.append(error)
                meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    assert not errors, errors
    return results
