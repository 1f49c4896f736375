"""What the head needs of the world of ranks, which it does not know itself."""

from __future__ import annotations

from typing import Any, Protocol


class Communicator(Protocol):
    """The collectives of the head; each has one stable name."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def allgather(self, array: Any, name: str) -> Any:
        """Concatenate the arrays of all ranks along their first axis."""

    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        """Reduce over the ranks ("sum" or "max"), in place and asynchronously."""

    def wait(self, array: Any) -> None:
        """Wait for the reduction of an array, after all work that can hide it."""
