"""The collectives that the head calls; ``parallel.world`` implements them over Horovod."""

from __future__ import annotations

from typing import Any, Protocol


class Communicator(Protocol):
    """The ranks of a run; each collective has one name for the whole run."""

    rank: int
    size: int

    def allgather(self, array: Any, name: str) -> Any:
        """Concatenate the ranks' arrays, of one shape, along their first axis; asynchronously."""

    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        """Reduce over the ranks ("sum" or "max"), in place and asynchronously."""

    def wait(self, array: Any) -> None:
        """Called where a reduction is needed, after all work that can hide it."""
