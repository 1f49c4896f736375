"""Loss and hits of an epoch so far, over all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

from data.batches.position import EpochPlan
from parallel.world import World
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
    """Adds up the counts of the updates of an epoch, without waiting for the device."""

    def __init__(self, world: World, epoch_plan: Callable[[], EpochPlan]) -> None:
        """Count from zero.

        Args:
            world: the ranks; not a timed world, which would wait for the counts.
            epoch_plan: returns that of the run; where an epoch begins, counting begins anew.
        """
        self._world, self._epoch_plan = world, epoch_plan
        self._sums = mx.nd.zeros((3,), dtype="float64")
        self._counted: Optional[Any] = None

    def add(self, losses: Any, hits: Any, update: int) -> Any:
        """Add an update.

        Args:
            losses: of the images of this rank, NDArray [b].
            hits: how many of them were classified correctly, NDArray [1].
            update: its number, from 0.

        Returns:
            The mean loss over all ranks, NDArray [1].
        """
        images = mx.nd.full((1,), len(losses), ctx=losses.context)
        # Into the same array each time: so no reduction begins before the last one has ended.
        self._counted = counted = mx.nd.concat(losses.sum(), hits, images, dim=0, out=self._counted)
        self._world.allreduce(counted, "training.counts")
        # In double precision: sums of single numbers would be rounded in a large epoch. On the
        # host, for a device is slow at it; the copy is queued.
        wide = counted.as_in_context(mx.cpu()).astype("float64")
        begins_epoch = self._epoch_plan().at(update).samples == 0
        self._sums = wide if begins_epoch else self._sums + wide
        return counted[:1] / (len(losses) * self._world.size)

    def epochs(self, update: int) -> float:
        """How many epochs are over after ``update`` updates."""
        return self._epoch_plan().epochs(update)

    def counts(self) -> Counts:
        """What was counted in this epoch; waits for the device."""
        loss, correct, total = self._sums.asnumpy().tolist()
        return Counts(loss, int(correct), int(total))

    def averages(self) -> dict[str, float]:
        """The numbers of a progress report: those of the tutorial's bar."""
        counts = self.counts()
        return {
            "mean_loss": counts.mean_loss,
            "accuracy": counts.accuracy,
            "correct": counts.correct,
            "total": counts.total,
        }
