"""Loss and hits of an epoch so far, over all ranks."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from runtime.mxnet import mx


class Counts(NamedTuple):
    """What was counted, over all ranks; each picture once."""

    loss: float
    """Sum over the pictures."""
    correct: int
    total: int

    @property
    def mean_loss(self) -> float:
        """Per picture; NaN if there were none."""
        return self.loss / self.total if self.total else math.nan

    @property
    def accuracy(self) -> float:
        """Share of the pictures that were classified correctly; NaN if there were none."""
        return self.correct / self.total if self.total else math.nan


class Tally:
    """Adds up the counts of the updates of an epoch, on the device, without waiting for it.

    Attributes:
        origin: the update from which epochs are counted.
    """

    def __init__(self, updates_per_epoch: int) -> None:
        """Args: updates_per_epoch: after so many updates it begins anew."""
        self._updates_per_epoch = updates_per_epoch
        self.origin = 0
        self._sums = mx.nd.zeros((3,), dtype="float64")

    def add(self, counted: Any, update: int) -> None:
        """Add an update's sum of losses, hits and pictures: NDArray [3], over all ranks."""
        # In double precision: sums of single numbers would be rounded in a large epoch.
        wide = counted.astype("float64")
        begins = (update - self.origin) % self._updates_per_epoch == 0
        self._sums = wide if begins else self._sums.as_in_context(wide.context) + wide

    def counts(self) -> Counts:
        """What was counted in this epoch; waits for the device."""
        loss, correct, total = self._sums.asnumpy().tolist()
        return Counts(loss, int(correct), int(total))

    def averages(self) -> dict[str, float]:
        """The numbers of a progress report."""
        counts = self.counts()
        return {"mean_loss": counts.mean_loss, "accuracy": counts.accuracy}
