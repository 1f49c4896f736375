"""One update of a face network: backbone, head, backward, optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Optional

from typing_extensions import override

from backbones.model import Backbone
from data.batches.loader import Batch
from partial_fc.head import PartialFC
from runtime.devices import Uploads
from runtime.mxnet import mx
from runtime.stopwatch import BACKBONE, COMMUNICATION, HEAD, Stopwatch
from training.loop import Step
from training.update.finite_guard import FiniteGuard
from training.update.optimizer import BackboneOptimizer
from training.update.teacher import Teacher


class FaceStep(Step):
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
        teacher: Optional[Teacher] = None,
    ) -> None:
        """Assemble the step.

        ``center_lr_factor`` is the learning rate of the centers over that of the backbone. Without
        a ``guard`` the run stops at numbers that are not finite. The distance from the embeddings
        of a ``teacher`` is part of the loss.
        """
        self._backbone, self._head, self._optimizer = backbone, head, optimizer
        self._center_lr_factor = center_lr_factor
        self._stopwatch = stopwatch or Stopwatch()
        self._guard = guard or FiniteGuard()
        self._upload, self._teacher = Uploads(backbone.context), teacher

    @override
    def __call__(self, batch: Batch, update: int, lr: float) -> Any:
        """Train on one batch; returns the mean loss of the global batch, NDArray [1].

        Raises:
            NonFiniteError: the loss or a gradient of the update before is not finite, and the guard
                stops the run.
        """
        guard, center_lr = self._guard, lr * self._center_lr_factor
        undo = self._remember() if guard.skips else None
        with self._stopwatch.part(BACKBONE):
            self._backbone.begin_update(update, self._head.shard.rank)
            with mx.autograd.record():
                features = self._backbone(self._upload(batch.images))
            self._stopwatch.wait(features)
        with self._stopwatch.part(HEAD):
            result = self._head.step(features, batch.labels, update, center_lr, hold=guard.skips)
            self._stopwatch.wait(result.gradient)
        with self._stopwatch.part(BACKBONE):
            if self._teacher is not None:
                result = self._teacher.add_to(result, features, batch.images)
            gradient = self._optimizer.scaled(result.gradient)
            self._backbone.backward(features, gradient)
            reduced = self._optimizer.reduce(update)
        if undo is not None:
            self._stopwatch.settle()
            with self._stopwatch.part(BACKBONE):
                accepted = guard.accept(update, result.loss, reduced)
            if not accepted:
                undo()
                return result.loss
            with self._stopwatch.part(HEAD):
                result.update_centers()
        with self._stopwatch.part(BACKBONE):
            self._optimizer.update(update, lr)
        self._stopwatch.settle()
        if undo is None:
            # Last, when all work of this update is queued. This waits for the update before, which
            # a device ends when other ranks do: the watchdog is to let a rank that waits for others
            # be, and end the one that stands still.
            with self._stopwatch.part(COMMUNICATION):
                guard.submit(update, result.loss, reduced)
        return result.loss

    @override
    def prepare(self, batch: Batch, update: int) -> None:
        with self._stopwatch.part(HEAD):
            self._head.prepare(batch.labels, update)

    @override
    def finish(self) -> None:
        with self._stopwatch.part(COMMUNICATION):
            self._guard.finish()

    def _remember(self) -> Callable[[], None]:
        """Keep what a forward pass changes; returns a function that puts it back."""
        statistics = [(array, array.copy()) for array in self._backbone.statistics]
        # A margin replaces its arrays and never writes into them, so a shallow copy is enough.
        margin = copy.copy(self._head.margin)

        def undo() -> None:
            for array, before in statistics:
                array[:] = before
            self._head.margin = margin

        return undo
