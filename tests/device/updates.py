"""Whole updates in one process, on the host and on a device.

The device is that of ``TOOLKIT_DEVICE``, by default ``cpu(1)``: a processor, but the product and
MXNet treat it as a device. ``make test-gpu`` sets ``gpu(0)``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from backbones.classifiers import Normalization
from backbones.classifiers.classifier import Classifier
from backbones.model import Backbone
from backbones.options import BackboneOptions, ClassifierOptions
from data.batches.loader import Batch
from data.batches.position import EpochPlan
from parallel.world import LoneWorld, TimedWorld, World
from partial_fc import optimizers
from partial_fc.head import PartialFC
from partial_fc.options import HeadOptions
from runtime import devices
from runtime.mxnet import mx
from runtime.stopwatch import Stopwatch
from training.config.faces import FaceOptimizerOptions
from training.config.images import LossOptions
from training.config.schedule import OptimizerOptions
from training.update.classify_step import ClassifyStep, SoftTargets
from training.update.epoch_counts import EpochCounts
from training.update.face_step import FaceStep
from training.update.finite_guard import FiniteGuard
from training.update.optimizer import BackboneOptimizer

_KIND, _, _NUMBER = os.environ.get("TOOLKIT_DEVICE", "cpu(1)").rstrip(")").partition("(")
HOST, DEVICE = mx.cpu(), mx.Context(_KIND, int(_NUMBER or 0))
ON_GPU = DEVICE.device_type == "gpu"
CLASSES, EMBEDDING, GLOBAL_BATCH = 40, 16, 24
LR = {"sgd": 0.05, "adam": 1e-3, "adamw": 1e-3}
# After more of them, numbers on two sides of a ReLU's bend outweigh the rounding.
UPDATES = 2


@dataclass(frozen=True)
class Faces:
    """The choices of a face run that an update depends on."""

    loss: str = "cosface"
    optimizer: str = "sgd"
    dtype: str = "float32"
    filter_threshold: float = 1.0
    network: str = "tiny"
    net_output: Optional[str] = None
    recompute: bool = False
    sync_bn: bool = False
    image_size: tuple[int, int] = (32, 32)
    global_batch: int = GLOBAL_BATCH

    def __str__(self) -> str:
        """Name a test by what differs from the defaults."""
        found = ((getattr(self, field.name), field.default) for field in fields(self))
        return "-".join(str(value) for value, default in found if value != default) or "cosface"


class Updated(NamedTuple):
    """What an update ended with: its loss, and all arrays."""

    loss: float
    arrays: dict[str, NDArray[Any]]


class Updates:
    """A network with its optimizer on one context, and batches for it."""

    network: Any
    step: Any
    lr: float
    batch: Callable[[int], Batch]
    """This rank's images and labels of an update; the same numbers in every run."""

    def train(self, count: int, start: int = 0) -> list[float]:
        """Do ``count`` updates from update ``start`` on; returns their losses."""
        updates = range(start, start + count)
        losses = [self.step(self.batch(update), update, self.lr) for update in updates]
        self.step.finish()
        return [float(loss.asscalar()) for loss in losses]

    def followed(self) -> list[Updated]:
        """Do ``UPDATES`` updates; returns what each of them ended with."""
        return [Updated(self.train(1, start)[0], self.arrays()) for start in range(UPDATES)]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The parameters."""
        named = self.network.parameters.items()
        return {name: parameter.data().asnumpy() for name, parameter in named}


class FaceUpdates(Updates):
    """A face network, its head and its optimizers."""

    def __init__(self, choices: Faces, context: Any, world: Optional[World] = None) -> None:
        options = BackboneOptions(
            network=choices.network, net_output=choices.net_output, embedding_size=EMBEDDING,
            dtype=choices.dtype, recompute=choices.recompute,
        )  # fmt: skip
        stopwatch = _stopwatch(context)
        self.world = world or LoneWorld()
        timed = TimedWorld(self.world, stopwatch)
        self._choices, self.lr = choices, LR[choices.optimizer]
        self.network = Backbone.create(options, image_size=choices.image_size, seed=1, ctx=context)
        self.network.hybridize()
        if choices.sync_bn:
            self.network.synchronize(timed)
        rule = FaceOptimizerOptions(optimizer=choices.optimizer)
        head = HeadOptions(
            choices.loss, scale=16.0, filter_threshold=choices.filter_threshold, sample_ratio=0.5
        )
        self.head = PartialFC.create(
            head, (CLASSES, EMBEDDING), timed, context, seed=5,
            optimizer=optimizers.build(rule.rule, rule.momentum, rule.wd),
        )  # fmt: skip
        optimizer = BackboneOptimizer(
            rule, self.network.parameters, timed, dtype=choices.dtype, stopwatch=stopwatch
        )
        self.step = FaceStep(
            self.network, self.head, optimizer, 1.0, stopwatch=stopwatch, guard=FiniteGuard()
        )

    def batch(self, update: int) -> Batch:
        """This rank's part of the global batch."""
        generator, count = np.random.default_rng((5, update)), self._choices.global_batch
        shape = (count, 3, *self._choices.image_size)
        images = generator.integers(256, size=shape, dtype=np.uint8)
        labels = generator.integers(CLASSES, size=count)
        own = count // self.world.size
        rows = slice(self.world.rank * own, (self.world.rank + 1) * own)
        return Batch(images[rows], labels[rows])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The parameters, and the centers with their states."""
        rows = {name: values.copy() for name, values in self.head.rows.export().items()}
        return {**super().arrays(), **rows}


class ClassifierUpdates(Updates):
    """A classifier and its optimizer."""

    lr = 0.01

    def __init__(
        self, context: Any, *, model: str = "ResNet18", dtype: str = "float32", mixup: float = 0.0
    ) -> None:
        stopwatch, world = _stopwatch(context), LoneWorld()
        self.network = Classifier.create(
            ClassifierOptions(model=model, dtype=dtype), classes=10, image_shape=(3, 32, 32),
            normalization=Normalization((0.5,) * 3, (0.25,) * 3), seed=3, ctx=context,
        )  # fmt: skip
        self.network.hybridize()
        optimizer = BackboneOptimizer(
            OptimizerOptions(), self.network.parameters, world, dtype=dtype, stopwatch=stopwatch
        )
        plan = EpochPlan(num_images=100 * GLOBAL_BATCH, global_batch=GLOBAL_BATCH)
        targets = SoftTargets(LossOptions(label_smoothing=0.1, mixup=mixup), 10, seed=1)
        self.step = ClassifyStep(
            self.network, optimizer, targets, EpochCounts(world, lambda: plan),
            stopwatch=stopwatch, guard=FiniteGuard(),
        )  # fmt: skip

    def batch(self, update: int) -> Batch:
        """Images of 32 x 32."""
        generator = np.random.default_rng((6, update))
        images = generator.integers(256, size=(GLOBAL_BATCH, 3, 32, 32), dtype=np.uint8)
        return Batch(images, generator.integers(10, size=GLOBAL_BATCH))


def _stopwatch(context: Any) -> Stopwatch:
    """One that measures as in a run: every update on the host, none of these on a device."""
    stopwatch = Stopwatch()
    if not devices.is_host(context):
        stopwatch.sample()
    return stopwatch
