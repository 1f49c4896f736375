"""Loss and hits of an epoch so far, over all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Optional

from data.batches.position import EpochPlan
from parallel.world import World
from runtime.mxnet import mx


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
        """Return how many epochs are over after ``update`` updates."""
        return self._epoch_plan().epochs(update)

    def averages(self) -> dict[str, float]:
        """Return the numbers of a progress report; waits for the device.

        These are ``correct`` and ``total``, the images of this epoch over all ranks, with their
        ``mean_loss`` and ``accuracy``, which are NaN if there were none.
        """
        loss, correct, total = self._sums.asnumpy().tolist()
        means = (loss / total, correct / total) if total else (math.nan, math.nan)
        counted = {"correct": int(correct), "total": int(total)}
        return {"mean_loss": means[0], "accuracy": means[1], **counted}
