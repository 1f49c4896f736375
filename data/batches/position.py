"""Where in the data a run is, so that another run can go on there.

An update's samples follow from its number as long as the global batch stays the same. A run that
goes on with another global batch must neither see a sample of the epoch twice nor leave one out,
so a position is counted in samples: the epoch, and how many samples of its order have been used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Position(NamedTuple):
    """The first sample that has not been used: ``samples`` of epoch ``epoch`` have."""

    epoch: int
    samples: int


@dataclass(frozen=True)
class EpochPlan:
    """The epochs of a run: the position of each update in the data.

    An epoch ends when what is left of it does not fill a global batch.

    Attributes:
        num_images: samples per epoch, at least one global batch.
        global_batch: samples per update.
        start_update: the first update of this plan.
        start: its position.
    """

    num_images: int
    global_batch: int
    start_update: int = 0
    start: Position = Position(0, 0)

    def at(self, update: int) -> Position:
        """Where an update begins; ``update`` is not before ``start_update``."""
        assert update >= self.start_update, (update, self.start_update)
        past = update - self.start_update
        left = max(self.num_images - self.start.samples, 0) // self.global_batch
        if past < left:
            return Position(self.start.epoch, self.start.samples + past * self.global_batch)
        epochs, updates = divmod(past - left, self.updates_per_epoch)
        return Position(self.start.epoch + 1 + epochs, updates * self.global_batch)

    @property
    def updates_per_epoch(self) -> int:
        """Global batches of a whole epoch."""
        return self.num_images // self.global_batch

    @property
    def origin(self) -> int:
        """Where the first epoch would have begun if all had had as many updates as those to come.

        From here on epochs begin at multiples of ``updates_per_epoch``, counted from this update,
        which may be negative; 0 if nothing has changed.
        """
        epoch = self.start.epoch + 1
        return self.first_update_of(epoch) - epoch * self.updates_per_epoch

    def epochs(self, update: int) -> float:
        """How many epochs are over after ``update`` updates."""
        return (update - self.origin) / self.updates_per_epoch

    def first_update_of(self, epoch: int) -> int:
        """The update with which an epoch begins, or ``start_update`` if it has begun before."""
        if epoch <= self.start.epoch:
            return self.start_update
        left = max(self.num_images - self.start.samples, 0) // self.global_batch
        return self.start_update + left + (epoch - self.start.epoch - 1) * self.updates_per_epoch
