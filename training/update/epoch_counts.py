"""Loss and hits of an epoch so far, over all ranks."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from data.batches.position import EpochPlan
from runtime.mxnet import mx


class Counts(NamedTuple):
    """What was counted, over all ranks; each image once."""

    loss: float
    """Sum over the images."""
    correct: int
    total: int

    @property
    def mean_loss(self) -> float:
        """Per image; NaN if there were none."""
        return self.loss / self.total if self.total else math.nan

    @property
    def accuracy(self) -> float:
        """Share of the images that were classified correctly; NaN if there were none."""
        return self.correct / self.total if self.total else math.nan


class EpochCounts:
    """Adds up the counts of the updates of an epoch, on the device, without waiting for it."""

    def __init__(self, epoch_plan: EpochPlan) -> None:
        """Args: epoch_plan: of the run; where an epoch of it begins, counting begins anew."""
        self._epoch_plan = epoch_plan
        self._sums = mx.nd.zeros((3,), dtype="float64")

    def add(self, counted: Any, update: int) -> None:
        """Add an update's sum of losses, hits and images: NDArray [3], over all ranks."""
        # In double precision: sums of single numbers would be rounded in a large epoch.
        wide = counted.astype("float64")
        begins_epoch = self._epoch_plan.at(update).samples == 0
        self._sums = wide if begins_epoch else self._sums.as_in_context(wide.context) + wide

    def counts(self) -> Counts:
        """What was counted in this epoch; waits for the device."""
        loss, correct, total = self._sums.asnumpy().tolist()
        return Counts(loss, int(correct), int(total))

    def averages(self) -> dict[str, float]:
        """The numbers of a progress report."""
        counts = self.counts()
        return {"mean_loss": counts.mean_loss, "accuracy": counts.accuracy}
