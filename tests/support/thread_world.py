"""Ranks as threads of one process: the collectives of a World without Horovod.

One rank computes at a time (the others wait for the lock), since the ranks share what a process has
once, as MXNet's random numbers; the order in which they run does not matter to a correct program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
from typing_extensions import override

from parallel.world import PLAIN, Wire, World
from runtime.mxnet import mx


class ThreadWorld(World):
    def __init__(self, rank: int, size: int, shared: Any) -> None:
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
        array[:] = getattr(np, op)(np.stack(values), axis=0).astype(array.dtype)
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


def run_ranks(size: int, rank_main: Callable[[ThreadWorld], Any]) -> list[Any]:
    """Run ``rank_main`` on ``size`` ranks; returns their results, or raises the first error."""
    shared = SimpleNamespace(
        barrier=threading.Barrier(size, timeout=60), computing=threading.Lock(), sent=[None] * size
    )

    def run(rank: int) -> Any:
        with shared.computing:
            try:
                return rank_main(ThreadWorld(rank, size, shared))
            except BaseException:
                shared.barrier.abort()
                raise

    with ThreadPoolExecutor(size) as pool:
        ended = [pool.submit(run, rank) for rank in range(size)]
    errors = [error for one in ended if (error := one.exception()) is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    assert not errors, errors
    return [one.result() for one in ended]
