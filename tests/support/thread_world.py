"""Ranks as threads of one process: the collectives of a World without Horovod.

One rank computes at a time (the others wait for the lock), since the ranks share what a process has
once, as MXNet's random numbers; the order in which they run does not matter to a correct program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from parallel.world import PLAIN, Wire, World
from runtime.mxnet import mx

REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": np.sum, "mean": np.mean, "max": np.max}


class _SharedValues:
    """Where the ranks of one world exchange values: their collective's name, and what it sends."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.computing = threading.Lock()
        self.sent: list[tuple[str, Any]] = [("", None)] * size


class ThreadWorld(World):
    """One rank of a world of threads."""

    def __init__(self, rank: int, size: int, shared: _SharedValues) -> None:
        self.rank = self.local_rank = rank
        self.size, self._shared = size, shared

    def _exchange(self, value: Any, name: str) -> list[Any]:
        shared = self._shared
        shared.sent[self.rank] = name, value
        shared.computing.release()
        try:
            shared.barrier.wait()
            sent = list(shared.sent)
            shared.barrier.wait()
        finally:
            shared.computing.acquire()
        names = {each for each, _ in sent}
        assert names == {name}, f"ranks met in different collectives: {names}"
        return [each for _, each in sent]

    @override
    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        values = self._exchange(array.asnumpy(), name)
        array[:] = REDUCTIONS[op](np.stack(values), axis=0).astype(array.dtype)
        return array

    @override
    def allreduce_all(
        self, arrays: Sequence[Any], name: str, op: str = "sum", wire: Wire = PLAIN
    ) -> None:
        assert wire == PLAIN, "threads send nothing"
        for index, array in enumerate(arrays):
            self.allreduce(array, f"{name}.{index}", op)

    @override
    def allgather(self, array: Any, name: str) -> Any:
        values = self._exchange(array.asnumpy(), name)
        return mx.nd.array(np.concatenate(values), ctx=array.context, dtype=array.dtype)

    @override
    def broadcast(self, array: Any, name: str) -> None:
        array[:] = self._exchange(array.asnumpy(), name)[0]

    @override
    def broadcast_object(self, value: Any, name: str) -> Any:
        return self._exchange(value, name)[0]

    @override
    def barrier(self) -> None:
        self._exchange(None, "barrier")


def run_ranks(size: int, rank_main: Callable[[ThreadWorld], Any]) -> list[Any]:
    """Run ``rank_main`` on ``size`` ranks; returns their results, or raises the first error."""
    shared = _SharedValues(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        with shared.computing:
            try:
                results[rank] = rank_main(ThreadWorld(rank, size, shared))
            except BaseException as error:
                errors.append(error)
                shared.barrier.abort()

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
