"""One update of a face network: backbone, head, backward, optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Optional

from backbones.model import Backbone
from data.batches.loader import Batch
from partial_fc.head import PartialFC
from runtime.mxnet import mx
from runtime.stopwatch import BACKBONE, HEAD, Stopwatch
from training.update.finite_guard import FiniteGuard
from training.update.optimizer import BackboneOptimizer


class FaceStep:
    """A step of the training loop on a backbone and its Partial FC head."""

    def __init__(
        self,
        backbone: Backbone,
        head: PartialFC,
        optimizer: BackboneOptimizer,
        center_lr_factor: float,
        *,
        stopwatch: Optional[Stopwatch] = None,
        guard: Optional[FiniteGuard] = None,
    ) -> None:
        """Assemble the step.

        Args:
            backbone: images to features.
            head: features to loss.
            optimizer: of the backbone.
            center_lr_factor: the learning rate of the centers over that of the backbone.
            stopwatch: where the time of the parts is counted.
            guard: what happens at numbers that are not finite; without one the run stops.
        """
        self._backbone = backbone
        self._head = head
        self._optimizer = optimizer
        self._center_lr_factor = center_lr_factor
        self._stopwatch = stopwatch or Stopwatch()
        self._guard = guard or FiniteGuard()

    def __call__(self, batch: Batch, update: int, lr: float) -> Any:
        """Train on one batch; returns the mean loss of the global batch, NDArray [1].

        Raises:
            NonFiniteError: the loss or a gradient is not finite, and the guard stops the run.
        """
        guard, center_lr = self._guard, lr * self._center_lr_factor
        undo = self._remember() if guard.skips else None
        with self._stopwatch.part(BACKBONE):
            with mx.autograd.record():
                features = self._backbone(mx.nd.array(batch.images, dtype="uint8"))
            features.wait_to_read()
        with self._stopwatch.part(HEAD):
            result = self._head.step(features, batch.labels, update, center_lr, hold=guard.skips)
        with self._stopwatch.part(BACKBONE):
            gradient = result.gradient * self._optimizer.loss_scale.value
            self._backbone.backward(features, gradient)
            finite = self._optimizer.reduce()
        if undo is not None:
            self._stopwatch.settle()
            with self._stopwatch.part(BACKBONE):
                accepted = guard.accept(update, result.loss, finite)
            if not accepted:
                undo()
                return result.loss
            with self._stopwatch.part(HEAD):
                result.update_centers()
        with self._stopwatch.part(BACKBONE):
            self._optimizer.update(update, lr)
        self._stopwatch.settle()
        if undo is None:
            # Last, when the optimizer's work is queued or done, and the reduction is over.
            with self._stopwatch.part(BACKBONE):
                guard.accept(update, result.loss, finite)
        return result.loss

    def _remember(self) -> Callable[[], None]:
        """Keep what a forward pass changes; returns what puts it back."""
        statistics = [(array, array.copy()) for array in self._backbone.statistics]
        # A margin replaces its arrays and never writes into them, so a shallow copy is enough.
        margin = copy.copy(self._head.margin)

        def undo() -> None:
            for array, before in statistics:
                array[:] = before
            self._head.margin = margin

        return undo
