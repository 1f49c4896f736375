"""Loss and hits of an epoch so far, over all ranks."""

from __future__ import annotations

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
        """Per picture."""
        return self.loss / self.total

    @property
    def accuracy(self) -> float:
        """Share of the pictures that were classified correctly."""
        return self.correct / self.total


class Tally:
    """Adds up the counts of the updates of an epoch, on the device, without waiting for it."""

    def __init__(self, updates_per_epoch: int) -> None:
        """Args: updates_per_epoch: after so many updates it begins anew."""
        self._updates_per_epoch = updates_per_epoch
        self._sums: Any = None

    def add(self, counted: Any, update: int) -> None:
        """Add an update's sum of losses, hits and pictures: NDArray [3], over all ranks."""
        if self._sums is None or update % self._updates_per_epoch == 0:
            # In double precision: sums of single numbers would be rounded in a large epoch.
            self._sums = mx.nd.zeros((3,), ctx=counted.context, dtype="float64")
        self._sums = self._sums + counted.astype("float64")

    def counts(self) -> Counts:
        """What was counted in this epoch; waits for the device."""
        loss, correct, total = self._sums.asnumpy().tolist()
        return Counts(loss, int(correct), int(total))

    def averages(self) -> dict[str, float]:
        """The numbers of a progress report."""
        counts = self.counts()
        return {"mean_loss": counts.mean_loss, "accuracy": counts.accuracy}
