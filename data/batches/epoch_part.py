"""Which images of an epoch's order one process reads.

Ranks that make one global batch together cut each batch of the common order. Workers that go their
own way each read a share of it, [start, end), from its beginning to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochPart:
    """The part of an epoch's order that one process reads.

    Attributes:
        first: where it begins in the order.
        length: images of an epoch, over all who read batches from it.
        stride: by how many images an update goes on.
        offset: where this process's batch begins among these.
        stream: makes the random changes of this process others than those of the rest.
        name: of this part, for messages.
    """

    first: int
    length: int
    stride: int
    offset: int = 0
    stream: tuple[int, ...] = ()
    name: str = "the training set"

    @property
    def updates_per_epoch(self) -> int:
        """Updates for which it has images."""
        return self.length // self.stride


def of_rank(count: int, batch_size: int, rank: int, size: int) -> EpochPart:
    """What a rank reads that shares each global batch with the others.

    Args:
        count: images of an epoch.
        batch_size: images per rank and update.
        rank: of ``size``.
        size: how many ranks.
    """
    return EpochPart(0, count, batch_size * size, rank * batch_size)


def of_worker(
    count: int,
    batch_size: int,
    worker: int,
    shares: Sequence[tuple[float, float]],
    together: Sequence[int],
) -> EpochPart:
    """What a worker reads that has a share of its own.

    Args:
        count: images of an epoch.
        batch_size: images per update.
        worker: its number.
        shares: of all workers, as fractions: from start to below end.
        together: the workers, this one among them, that do equally many updates: as many as the
            smallest share allows.
    """
    assert worker in together
    bounds = {
        number: (round(start * count), round(end * count))
        for number, (start, end) in enumerate(shares)
    }
    smallest = min(together, key=lambda number: bounds[number][1] - bounds[number][0])
    first, end = bounds[smallest]
    return EpochPart(
        first=bounds[worker][0],
        length=end - first,
        stride=batch_size,
        stream=(worker,),
        name=f"the share of worker {smallest}",
    )


def equal_shares(workers: int) -> tuple[tuple[float, float], ...]:
    """As much for each worker."""
    return tuple((worker / workers, (worker + 1) / workers) for worker in range(workers))
