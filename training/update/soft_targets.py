"""The targets of a classifier: smoothed labels, and mixtures of pairs of images."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.batches.loader import Batch
from runtime.devices import Uploads
from training.config.images import LossOptions

# The first number of the seed of the shares, so that no two uses share their random numbers.
_MIXUP = 7


class SoftTargets:
    """Turns a batch of labeled images into images and the share of each class in their targets.

    ``--label-smoothing`` spreads a share of the target over all classes (Szegedy et al.,
    arXiv:1512.00567, section 7). With ``--mixup`` each image is mixed with the one at its mirrored
    position in the rank's batch (Zhang et al., arXiv:1710.09412).
    """

    def __init__(self, options: LossOptions, num_classes: int, seed: int) -> None:
        """Args: options; the number of logits; the seed of the shares of mixed images."""
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
