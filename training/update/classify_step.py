"""One update of a classifier: forward, loss, backward, optimizer."""

from __future__ import annotations

from typing import Any

from backbones.network import Network
from data.batches.loader import Batch
from runtime.mxnet import mx
from runtime.stopwatch import BACKBONE, Stopwatch
from training.update.epoch_counts import EpochCounts
from training.update.finite_guard import FiniteGuard
from training.update.optimizer import Optimizer
from training.update.soft_targets import SoftTargets


class ClassifyStep:
    """A step of the training loop on a classifier.

    The loss is the mean over the images of an update, as for faces: a rank's part of it is the
    sum over its own images divided by their number on all ranks that contribute to the update,
    and gradients are summed.

    Attributes:
        classifier: the network.
    """

    def __init__(
        self,
        classifier: Network,
        optimizer: Optimizer,
        targets: SoftTargets,
        epoch_counts: EpochCounts,
        *,
        stopwatch: Stopwatch,
        guard: FiniteGuard,
    ) -> None:
        """Assemble the step.

        Args:
            classifier: images to logits.
            optimizer: of the classifier.
            targets: makes the targets of the loss.
            epoch_counts: counts loss and hits over all ranks.
            stopwatch: where the time of the parts is counted.
            guard: stops the run at numbers that are not finite.
        """
        self.classifier, self._optimizer = classifier, optimizer
        self._targets, self._epoch_counts = targets, epoch_counts
        self._stopwatch, self._guard = stopwatch, guard

    def __call__(self, batch: Batch, update: int, lr: float) -> Any:
        """Train on one batch; returns the mean loss over the ranks that count together, [1].

        Raises:
            NonFiniteError: the loss or a gradient is not finite.
        """
        optimizer = self._optimizer
        with self._stopwatch.part(BACKBONE):
            images, targets = self._targets(batch, update)
            with mx.autograd.record():
                logits = self.classifier(images)
                wanted = mx.nd.array(targets, ctx=logits.context)
                losses = -(wanted * mx.nd.log_softmax(logits)).sum(axis=1)
                global_batch = len(batch.labels) * optimizer.contributors
                loss = losses.sum() * (optimizer.loss_scale.value / global_batch)
            loss.backward()
            hits = (logits.argmax(axis=1) == wanted.argmax(axis=1)).sum()
            # Queued before the gradients, so that reading the counts does not wait for those.
            mean_loss = self._epoch_counts.add(losses, hits, update)
            finite = optimizer.reduce()
            optimizer.update(update, lr)
        self._stopwatch.settle()
        with self._stopwatch.part(BACKBONE):
            self._guard.accept(update, mean_loss, finite)
        return mean_loss
