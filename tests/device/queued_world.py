"""Ranks as threads whose collectives are queued, as those of Horovod are, and wait for nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from typing_extensions import override

from runtime.mxnet import mx
from tests.support.thread_world import ThreadWorld, run_ranks

_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda one, other: one + other,
    "max": mx.nd.maximum,
}


class QueuedWorld(ThreadWorld):
    """One rank of a world of threads, which hand each other arrays and not their numbers."""

    @override
    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        # Copies, because each rank writes into its own array while others read it.
        reduce(_REDUCTIONS[op], self._exchange(array.copy(), name)).copyto(array)
        return array

    @override
    def allgather(self, array: Any, name: str) -> Any:
        return mx.nd.concat(*self._exchange(array, name), dim=0)


def run_queued_ranks(size: int, rank_main: Callable[[QueuedWorld], Any]) -> list[Any]:
    """As ``run_ranks``."""
    return run_ranks(
        size, lambda world: rank_main(QueuedWorld(world.rank, world.size, world._shared))
    )
