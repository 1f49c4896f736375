"""Loss and hits of an epoch so far, over all ranks."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from data.batches.position import Course
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
    """Adds up the counts of the updates of an epoch, on the device, without waiting for it."""

    def __init__(self, course: Course) -> None:
        """Args: course: of the run; where an epoch of it begins, counting begins anew."""
        self._course = course
        self._sums = mx.nd.zeros((3,), dtype="float64")

    def add(self, counted: Any, update: int) -> None:
        """Add an update's sum of losses, hits and pictures: NDArray [3], over all ranks."""
        # In double precision: sums of single numbers would be rounded in a large epoch.
        wide = counted.astype("float64")
        begins_epoch = self._course.at(update).samples == 0
        self._sums = wide if begins_epoch else self._sums.as_in_context(wide.context) + wide

    def counts(self) -> Counts:
        """What was counted in this epoch; waits for the device."""
        loss, correct, total = self._sums.asnumpy().tolist()
        return Counts(loss, int(correct), int(total))

    def averages(self) -> dict[str, float]:
        """The numbers of a progress report."""
        counts = self.counts()
        return {"mean_loss": counts.mean_loss, "accuracy": counts.accuracy}
