"""Interface of the collectives that several packages call; ``parallel.world`` implements it."""

from __future__ import annotations

from typing import Any, Protocol


class Communicator(Protocol):
    """The ranks that compute together, seen from one of them."""

    rank: int
    """Number of this rank, 0 … size - 1."""
    size: int
    local_rank: int
    """Number of this rank among those on its host."""

    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        """Reduce an NDArray over the ranks, in place.

        Asynchronous: the reduction is queued as an operation of MXNet's engine, and a read of the
        array waits for it.

        Args:
            array: an NDArray of the same shape and type on every rank.
            name: the stable name of this collective.
            op: "sum", "mean" or "max".
        """

    def allgather(self, array: Any, name: str) -> Any:
        """Concatenate NDArrays of all ranks along their first axis, in rank order.

        Asynchronous like ``allreduce``, so all of them must have one shape and type.
        """

    def wait(self, array: Any) -> None:
        """Call it where a reduction is needed, after all work that can hide it.

        What uses the array waits for it anyway; a timed world measures the wait here.
        """
        return None
