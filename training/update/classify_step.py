"""One update of a classifier: targets, forward, loss, backward, optimizer; and what is counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from backbones.network import Network
from data.batches.loader import Batch
from data.batches.position import EpochPlan
from parallel.world import World
from runtime.devices import Uploads
from runtime.mxnet import mx
from runtime.stopwatch import BACKBONE, COMMUNICATION, Stopwatch
from training.config.images import LossOptions
from training.loop import Step
from training.update.gradients import FiniteGuard
from training.update.optimizer import Optimizer

# The first number of the seed of the shares, so that no two uses share their random numbers.
_MIXUP = 7


class ClassifyStep(Step):
    """A step of the training loop on a classifier.

    The loss is the mean over the images of an update, as for faces: a rank's part of it is the
    sum over its own images divided by their number on all ranks that contribute to the update,
    and gradients are summed.
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
        """Assemble the step of a classifier from images to logits."""
        self.classifier, self._optimizer = classifier, optimizer
        self._targets, self._epoch_counts = targets, epoch_counts
        self._stopwatch, self._guard = stopwatch, guard
        self._upload = Uploads(classifier.context)

    @override
    def __call__(self, batch: Batch, update: int, lr: float) -> Any:
        """Train on one batch; returns the mean loss over the ranks that count together, [1].

        Raises:
            ConfigError: the loss or a gradient of the update before is not finite.
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
                loss = optimizer.scaled(losses.sum() * (1.0 / global_batch))
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


class SoftTargets:
    """Turns a batch of labeled images into images and the share of each class in their targets.

    ``--label-smoothing`` spreads a share of the target over all classes (Szegedy et al.,
    arXiv:1512.00567, section 7). With ``--mixup`` each image is mixed with the one at its mirrored
    position in the rank's batch (Zhang et al., arXiv:1710.09412).
    """

    def __init__(self, options: LossOptions, num_classes: int, seed: int) -> None:
        self._options, self._num_classes, self._seed = options, num_classes, seed

    def __call__(self, batch: Batch, update: int, upload: Uploads) -> tuple[Any, Any]:
        """Return the images and the targets, [b, classes], of an update, on a device."""
        images = upload(batch.images)
        targets = self.smoothed(batch.labels)
        if self._options.mixup:
            share = self.share(update)
            images = _mixed(images.astype("float32"), share)
            targets = np.asarray(_mixed(targets, share), np.float32)
        return images, upload(targets)

    def smoothed(self, labels: NDArray[np.int64]) -> NDArray[np.float32]:
        """The share of each class in each target, float32 [b, classes]."""
        smoothing = self._options.label_smoothing
        spread = smoothing / self._num_classes
        targets = np.full((len(labels), self._num_classes), spread, np.float32)
        targets[np.arange(len(labels)), labels] += 1 - smoothing
        return targets

    def share(self, update: int) -> float:
        """The share of the first of two mixed images, 0.5 … 1; the same on all ranks."""
        mixup = self._options.mixup
        share = np.random.default_rng((_MIXUP, self._seed, update)).beta(mixup, mixup)
        return float(max(share, 1 - share))


def _mixed(values: Any, share: float) -> Any:
    return share * values + (1 - share) * values[::-1]


class EpochCounts:
    """Loss and hits of an epoch so far, over all ranks, without waiting for the device."""

    def __init__(self, world: World, epoch_plan: Callable[[], EpochPlan]) -> None:
        """Count from zero, and anew where an epoch of the plan begins.

        ``world`` is no timed world, which would wait for the counts.
        """
        self._world, self._epoch_plan = world, epoch_plan
        self._sums = mx.nd.zeros((3,), dtype="float64")
        self._counted: Optional[Any] = None

    def add(self, losses: Any, hits: Any, update: int) -> Any:
        """Add an update; returns the mean loss over all ranks, NDArray [1].

        ``losses`` are those of this rank's images, NDArray [b]; ``hits``, NDArray [1], is the
        number of them that were classified correctly.
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
