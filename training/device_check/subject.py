"""A small training run of the program's own parts, on any context.

The same options, weights and batches on the host and on a device; what differs is the context.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from backbones.model import Backbone
from backbones.options import BackboneOptions
from data.batches.loader import Batch
from parallel.world import World
from partial_fc import optimizers
from partial_fc.head import PartialFC
from partial_fc.options import HeadOptions
from runtime.gpu_check import NotRun
from runtime.stopwatch import Stopwatch
from training.config.faces import FaceOptimizerOptions
from training.update.face_step import FaceStep
from training.update.optimizer import BackboneOptimizer

_SEED = 7
# SGD's; Adam's steps do not depend on the size of a gradient. An update changes weights by about a
# hundredth: enough that float16 weights show it, little enough that rounding does not grow with it.
_LEARNING_RATES = {"sgd": 0.02, "adam": 1e-3, "adamw": 1e-3}


@dataclass(frozen=True)
class Subject:
    """What is trained. The scale is lower than in training, where it magnifies rounding."""

    head: HeadOptions = field(default_factory=lambda: HeadOptions(scale=16.0, sample_ratio=0.5))
    optimizer: FaceOptimizerOptions = field(default_factory=FaceOptimizerOptions)
    network: str = "tiny"
    image_size: int = 64
    batch_size: int = 32
    classes: int = 1000
    embedding_size: int = 64
    updates: int = 2
    """Those that are compared: the second has the momenta of the first."""


class Trained(NamedTuple):
    """The numbers of some updates."""

    losses: list[float]
    changes: dict[str, NDArray[np.float32]]
    """What they have changed, in one row: of the weights, of BatchNorm's statistics, and of the
    class centers."""


def need_float16(context: Any) -> None:
    """Raise ``NotRun`` for a device that cannot compute with a float16 network."""
    if context.device_type != "gpu":
        raise NotRun("MXNet has no float16 products on a processor")


class Training:
    """A subject on a context, ready to be trained."""

    def __init__(self, subject: Subject, world: World, context: Any, dtype: str) -> None:
        """Build the parts as ``train.py`` does.

        Raises:
            NotRun: the context has no such numbers.
        """
        if dtype == "float16":
            need_float16(context)
        self._subject, self._world = subject, world
        size = subject.image_size, subject.image_size
        options = BackboneOptions(
            network=subject.network, embedding_size=subject.embedding_size, dtype=dtype
        )
        self._backbone = Backbone.create(options, image_size=size, seed=_SEED, ctx=context)
        self._backbone.hybridize()
        self._head = PartialFC.create(
            subject.head,
            (subject.classes, subject.embedding_size),
            world,
            context,
            optimizer=optimizers.build(subject.optimizer),
            seed=_SEED,
        )
        optimizer = BackboneOptimizer(
            subject.optimizer, self._backbone.parameters, world, dtype=dtype
        )
        stopwatch = Stopwatch()
        # Nothing waits for the sake of the clock, as in most updates of a run on a device.
        stopwatch.sample()
        self._step = FaceStep(self._backbone, self._head, optimizer, 1.0, stopwatch=stopwatch)

    def update(self, number: int) -> Any:
        """Make the update of this number; returns its loss, an NDArray [1]."""
        subject = self._subject
        rng = np.random.default_rng((_SEED, number, self._world.rank))
        shape = subject.batch_size, 3, subject.image_size, subject.image_size
        batch = Batch(
            rng.integers(256, size=shape, dtype=np.uint8),
            rng.integers(subject.classes, size=subject.batch_size),
        )
        return self._step(batch, number, _LEARNING_RATES[subject.optimizer.rule])

    def run(self) -> Trained:
        """Make the updates that are compared, and return their numbers."""
        before = self._numbers()
        updates = range(self._subject.updates)
        losses = [float(self.update(number).asscalar()) for number in updates]
        self._step.finish()
        after = self._numbers()
        return Trained(losses, {group: after[group] - before[group] for group in before})

    def _numbers(self) -> dict[str, NDArray[np.float32]]:
        # By name: the host's form of a graph has another order than that of a device.
        parameters = [one for _, one in sorted(self._backbone.parameters.items())]
        groups = {
            "weights": [one.data().asnumpy() for one in parameters if one.grad_req != "null"],
            "statistics": [one.data().asnumpy() for one in parameters if one.grad_req == "null"],
            "centers": [self._head.rows.export()["centers"]],
        }
        return {
            name: np.concatenate([array.ravel().astype(np.float32) for array in arrays])
            for name, arrays in groups.items()
        }
