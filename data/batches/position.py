"""Where in the data a run is, so that another run can continue there.

The samples of an update follow from its number as long as the global batch stays the same. A run
that continues with another global batch must neither repeat a sample of the epoch nor leave one
out, so a position is counted in samples.
"""

from __future__ import annotations

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
        past = update - self.start_update
        left = self._updates_left
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
        """The update at which epoch 0 would have begun if all epochs had ``updates_per_epoch``.

        The epochs after the first one of this plan begin at multiples of ``updates_per_epoch``,
        counted from here. It is 0 if the global batch has never changed, and may be negative.
        """
        epoch = self.start.epoch + 1
        return self.first_update_of(epoch) - epoch * self.updates_per_epoch

    def epochs(self, update: int) -> float:
        """Return how many epochs are over after ``update`` updates."""
        return (update - self.origin) / self.updates_per_epoch

    def first_update_of(self, epoch: int) -> int:
        """Return the first update of an epoch; ``start_update`` for one that began before it."""
        if epoch <= self.start.epoch:
            return self.start_update
        whole_epochs = epoch - self.start.epoch - 1
        return self.start_update + self._updates_left + whole_epochs * self.updates_per_epoch

    @property
    def _updates_left(self) -> int:
        """Updates from ``start_update`` to the end of its epoch."""
        return max(self.num_images - self.start.samples, 0) // self.global_batch
