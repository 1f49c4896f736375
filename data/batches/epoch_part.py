"""Which images of an epoch's order one process reads.

Ranks that make each global batch together read their own rows of it. Workers that update the
weights by themselves each read a share of the order, from its start to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochPart:
    """The part of an epoch's order that one process reads.

    Attributes:
        first: index in the order at which the part begins.
        length: images per epoch, of all processes that read the same part.
        stride: images per update, of all these processes.
        offset: index of this process's first row among the images of an update.
        stream: added to the seed of random changes: each part has random numbers of its own.
        name: of the part, for messages.
    """

    first: int
    length: int
    stride: int
    offset: int = 0
    stream: tuple[int, ...] = ()
    name: str = "the training set"

    @classmethod
    def of_rank(cls, count: int, batch_size: int, rank: int, size: int) -> EpochPart:
        """Return the part of one of ``size`` ranks that share each global batch.

        ``count`` is the number of images of an epoch, ``batch_size`` that per rank and update.
        """
        return cls(0, count, batch_size * size, rank * batch_size)

    @classmethod
    def of_worker(
        cls,
        count: int,
        batch_size: int,
        worker: int,
        shares: Sequence[tuple[float, float]],
        group: Sequence[int],
    ) -> EpochPart:
        """Return the part of a worker that has a share of its own.

        Args:
            count: images of an epoch.
            batch_size: images per update.
            worker: its number.
            shares: start and end of all workers' shares, as fractions of an epoch.
            group: this worker and those that make as many updates per epoch as it does; the
                smallest share of the group determines how many.
        """
        assert worker in group
        bounds = [(round(start * count), round(end * count)) for start, end in shares]
        smallest = min(group, key=lambda number: bounds[number][1] - bounds[number][0])
        first, end = bounds[smallest]
        name = f"the share of worker {smallest}"
        return cls(bounds[worker][0], end - first, batch_size, stream=(worker,), name=name)

    @property
    def updates_per_epoch(self) -> int:
        """Full batches of the part."""
        return self.length // self.stride


def equal_shares(workers: int) -> tuple[tuple[float, float], ...]:
    """Return the shares of ``workers`` workers that all read as much."""
    return tuple((worker / workers, (worker + 1) / workers) for worker in range(workers))
