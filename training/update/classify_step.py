"""One update of a classifier: forward, loss, backward, optimizer."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from backbones.network import Network
from data.batches.loader import Batch
from runtime.devices import Uploads
from runtime.mxnet import mx
from runtime.stopwatch import BACKBONE, COMMUNICATION, Stopwatch
from training.loop import Step
from training.update.epoch_counts import EpochCounts
from training.update.finite_guard import FiniteGuard
from training.update.optimizer import Optimizer
from training.update.soft_targets import SoftTargets


class ClassifyStep(Step):
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
        self._upload = Uploads(classifier.context)

    @override
    def __call__(self, batch: Batch, update: int, lr: float) -> Any:
        """Train on one batch; returns the mean loss over the ranks that count together, [1].

        Raises:
            NonFiniteError: the loss or a gradient of the update before is not finite.
        """
        optimizer = self._optimizer
        with self._stopwatch.part(BACKBONE):
            images, wanted = self._targets(batch, update, self._upload)
            with mx.autograd.record():
                outputs = self.classifier(images)
                # Cut off here: the classifier has a backward pass of its own.
                logits = outputs.detach()
                logits.attach_grad()
                losses = -(wanted * mx.nd.log_softmax(logits)).sum(axis=1)
                global_batch = len(batch.labels) * optimizer.contributors
                loss = optimizer.loss_scale.scaled(losses.sum() * (1.0 / global_batch))
            loss.backward()
            self.classifier.backward(outputs, logits.grad)
            hits = (logits.argmax(axis=1) == wanted.argmax(axis=1)).sum()
            # Queued before the gradients, so that reading the counts does not wait for those.
            mean_loss = self._epoch_counts.add(losses, hits, update)
            reduced = optimizer.reduce(update)
            optimizer.update(update, lr)
        self._stopwatch.settle()
        # As in ``FaceStep``.
        with self._stopwatch.part(COMMUNICATION):
            self._guard.submit(update, mean_loss, reduced)
        return mean_loss

    @override
    def finish(self) -> None:
        with self._stopwatch.part(COMMUNICATION):
            self._guard.finish()
