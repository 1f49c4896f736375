"""Position of a run in the data, and the images of an epoch that one process reads.

The samples of an update follow from its number as long as the global batch stays the same. A run
that continues with another global batch must neither repeat a sample of the epoch nor leave one
out, so a position is counted in samples.

Ranks that make each global batch together read their own rows of it. Workers that update the
weights by themselves each read a share of the order, from its start to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Position(NamedTuple):
    """An epoch, and how many samples of its order have been used."""

    epoch: int
    samples: int


@dataclass(frozen=True)
class EpochPlan:
    """The position of each update in the data, and the first update of each epoch.

    An epoch ends when its remaining samples do not fill a global batch.

    Attributes:
        num_images: samples per epoch, at least one global batch.
        global_batch: samples per update.
        start_update: the first update of this plan.
        start: the position of that update.
    """

    num_images: int
    global_batch: int
    start_update: int = 0
    start: Position = Position(0, 0)

    def at(self, update: int) -> Position:
        """Return the position of an update, which is not before ``start_update``."""
        assert update >= self.start_update, (update, self.start_update)
        epoch, place = divmod(update - self.origin, self.updates_per_epoch)
        if epoch > self.start.epoch:
            return Position(epoch, place * self.global_batch)
        samples = (update - self.start_update) * self.global_batch
        return Position(self.start.epoch, self.start.samples + samples)

    @property
    def updates_per_epoch(self) -> int:
        """Global batches of a whole epoch."""
        return self.num_images // self.global_batch

    @property
    def origin(self) -> int:
        """The update at which epoch 0 would have begun if all epochs had ``updates_per_epoch``.

        The epochs after the first one of this plan begin at multiples of ``updates_per_epoch``,
        counted from here. It is 0 if the global batch has never changed, and may be negative.
        """
        left = max(self.num_images - self.start.samples, 0) // self.global_batch
        return self.start_update + left - (self.start.epoch + 1) * self.updates_per_epoch

    def epochs(self, update: int) -> float:
        """Return how many epochs are over after ``update`` updates."""
        return (update - self.origin) / self.updates_per_epoch

    def first_update_of(self, epoch: int) -> int:
        """Return the first update of an epoch; ``start_update`` for one that began before it."""
        if epoch <= self.start.epoch:
            return self.start_update
        return self.origin + epoch * self.updates_per_epoch


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
