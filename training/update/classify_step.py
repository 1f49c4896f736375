"""One update of a classifier: forward, loss, backward, optimizer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbones.network import Network
from data.batches.loader import Batch
from parallel.world import World
from runtime.mxnet import mx
from training.log.stopwatch import BACKBONE, Stopwatch
from training.update.epoch_counts import EpochCounts
from training.update.finite_guard import FiniteGuard
from training.update.optimizer import Optimizer

# The first number of the seed of the shares, so that no two uses share their random numbers.
_MIXUP = 7


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
        world: World,
        epoch_counts: EpochCounts,
        *,
        contributors: int,
        num_classes: int,
        label_smoothing: float,
        mixup: float,
        seed: int,
        stopwatch: Stopwatch,
        guard: FiniteGuard,
    ) -> None:
        """Assemble the step.

        Args:
            classifier: images to logits.
            optimizer: of the classifier.
            world: the ranks; not a timed one, which would wait for the counts.
            epoch_counts: counts loss and hits over all ranks.
            contributors: the ranks whose gradients make one update, which may be more or fewer
                than those that count together.
            num_classes: the number of logits.
            label_smoothing: share of the target that is spread over all classes (Szegedy et al.,
                arXiv:1512.00567, section 7).
            mixup: shares of two mixed images come from Beta(mixup, mixup), 0 for none (Zhang et
                al., arXiv:1710.09412); each is mixed with its mirror place in the rank's batch.
            seed: of these shares.
            stopwatch: where the time of the parts is counted.
            guard: stops the run at numbers that are not finite.
        """
        self.classifier, self._optimizer = classifier, optimizer
        self._world, self._epoch_counts = world, epoch_counts
        self._contributors, self._num_classes = contributors, num_classes
        self._label_smoothing, self._mixup, self._seed = label_smoothing, mixup, seed
        self._stopwatch, self._guard = stopwatch, guard

    def __call__(self, batch: Batch, update: int, lr: float) -> Any:
        """Train on one batch; returns the mean loss of what ``world`` has done, NDArray [1].

        Raises:
            NonFiniteError: the loss or a gradient is not finite.
        """
        with self._stopwatch.part(BACKBONE):
            images = mx.nd.array(batch.images, dtype="uint8")
            targets = self.targets(batch.labels)
            if self._mixup:
                share = self._share(update)
                images = _mixed(images.astype("float32"), share)
                targets = np.asarray(_mixed(targets, share), np.float32)
            with mx.autograd.record():
                logits = self.classifier(images)
                wanted = mx.nd.array(targets, ctx=logits.context)
                losses = -(wanted * mx.nd.log_softmax(logits)).sum(axis=1)
                global_batch = len(batch.labels) * self._contributors
                loss = losses.sum() * (self._optimizer.loss_scale.value / global_batch)
            loss.backward()
            hits = (logits.argmax(axis=1) == wanted.argmax(axis=1)).sum()
            counted = mx.nd.concat(
                losses.sum(), hits, mx.nd.full((1,), len(wanted), ctx=logits.context), dim=0
            )
            # Queued before the gradients: who reads it later does not wait for them.
            self._world.allreduce(counted, "training.counts")
            self._epoch_counts.add(counted, update)
            finite = self._optimizer.reduce()
            self._optimizer.update(update, lr)
        self._stopwatch.settle()
        mean_loss = counted[:1] / (len(batch.labels) * self._world.size)
        with self._stopwatch.part(BACKBONE):
            self._guard.accept(update, mean_loss, finite)
        return mean_loss

    def targets(self, labels: NDArray[np.int64]) -> NDArray[np.float32]:
        """The share of each class in each target, float32 [b, classes]."""
        spread = self._label_smoothing / self._num_classes
        targets = np.full((len(labels), self._num_classes), spread, np.float32)
        targets[np.arange(len(labels)), labels] += 1 - self._label_smoothing
        return targets

    def _share(self, update: int) -> float:
        """The share of the first of two mixed images, 0.5 … 1; the same on all ranks."""
        share = np.random.default_rng((_MIXUP, self._seed, update)).beta(self._mixup, self._mixup)
        return float(max(share, 1 - share))


def _mixed(values: Any, share: float) -> Any:
    return share * values + (1 - share) * values[::-1]
