"""One update of a face network: backbone, head, backward, optimizer."""

from __future__ import annotations

from typing import Any, Optional

from backbones.model import Backbone
from data.loader import Batch
from partial_fc.head import PartialFC
from runtime.mxnet import mx
from training.optimizer import BackboneOptimizer
from training.stopwatch import BACKBONE, HEAD, Stopwatch


class FaceStep:
    """A step of the training loop on a backbone and its Partial FC head."""

    def __init__(
        self,
        backbone: Backbone,
        head: PartialFC,
        optimizer: BackboneOptimizer,
        *,
        center_lr_factor: float,
        stopwatch: Optional[Stopwatch] = None,
    ) -> None:
        """Assemble the step.

        Args:
            backbone: images to features.
            head: features to loss.
            optimizer: of the backbone.
            center_lr_factor: the learning rate of the centers over that of the backbone.
            stopwatch: where the time of the parts is counted, if anybody wants to know.
        """
        self._backbone = backbone
        self._head = head
        self._optimizer = optimizer
        self._center_lr_factor = center_lr_factor
        self._stopwatch = stopwatch or Stopwatch()

    def __call__(self, batch: Batch, update: int, lr: float) -> Any:
        """Train on one batch; returns the mean loss of the global batch, NDArray [1]."""
        with self._stopwatch.part(BACKBONE):
            with mx.autograd.record():
                features = self._backbone(mx.nd.array(batch.images, dtype="uint8"))
            features.wait_to_read()
        with self._stopwatch.part(HEAD):
            result = self._head.step(features, batch.labels, update, lr * self._center_lr_factor)
        with self._stopwatch.part(BACKBONE):
            gradient = result.gradient * self._optimizer.loss_scale.value
            self._backbone.backward(features, gradient)
            self._optimizer.step(update, lr)
        self._stopwatch.settle()
        return result.loss
