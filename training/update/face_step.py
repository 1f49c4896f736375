"""One update of a face network: backbone, head, teacher, backward, optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from backbones.inference import Infer
from backbones.model import Backbone
from backbones.network import checkpoint_paths
from data.batches.loader import Batch
from evaluation.features import check_finite, normalized
from parallel.world import World
from partial_fc.head import HeadStep, PartialFC
from runtime.devices import Uploads
from runtime.errors import ConfigError
from runtime.mxnet import mx
from runtime.stopwatch import BACKBONE, COMMUNICATION, HEAD, Stopwatch
from training.config.faces import TeacherOptions
from training.loop import Step
from training.run_folder import check_data
from training.update.gradients import FiniteGuard
from training.update.optimizer import BackboneOptimizer

# Below it an embedding has no direction.
_SMALLEST_NORM = 1e-12


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
    ) -> None:
        """Assemble the step.

        ``center_lr_factor`` is the learning rate of the centers over that of the backbone. Without
        a ``guard`` the run stops at numbers that are not finite.
        """
        self._backbone, self._head, self._optimizer = backbone, head, optimizer
        self._center_lr_factor = center_lr_factor
        self._stopwatch = stopwatch or Stopwatch()
        self._guard = guard or FiniteGuard()
        self._upload = Uploads(backbone.context)
        self._teacher: Optional[Teacher] = None

    def learn_from(self, teacher: Optional[Teacher]) -> None:
        """Add the distance from a teacher's embeddings to the loss; None adds nothing."""
        self._teacher = teacher

    @override
    def __call__(self, batch: Batch, update: int, lr: float) -> Any:
        """Train on one batch; returns the mean loss of the global batch, NDArray [1].

        Raises:
            ConfigError: the loss or a gradient of the update before is not finite, and the guard
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


class Teacher:
    """Adds ``weight`` times the mean of 1 - cosine(embedding, teacher's embedding) to a loss.

    A small network that is trained on classes alone has to find out by itself where each image
    belongs. A larger one has found it out: for each image it gives a direction, which says more
    than the class (distillation of embeddings by their cosine: Hinton et al., "Distilling the
    Knowledge in a Neural Network", 2015, for the idea; Duong et al., "ShrinkTeaNet", 2019,
    arXiv:1905.10620, section 3.3, for the angle between embeddings). The teacher sees the very
    images of the update, augmented as they are, in the form for inference, and is not changed.

    Shapes: b batch of a rank, B global batch, D embedding.
    """

    def __init__(self, infer: Infer, weight: float, world: World) -> None:
        """Assemble it from images uint8 [b, 3, H, W] to the teacher's embeddings float32 [b, D].

        With a weight of 0 the distance is only measured. ``world`` is no timed world, which would
        wait for the mean of all.
        """
        self._infer, self._weight, self._world = infer, weight, world
        self._distance: Optional[Any] = None

    @classmethod
    def create(
        cls, options: TeacherOptions, student: Backbone, image_size: tuple[int, int], world: World
    ) -> Optional[Teacher]:
        """Load the teacher of a network, or return None if there is none; all ranks together.

        Raises:
            ConfigError: its embeddings have another length, or other hosts another file.
            DataError: the checkpoint is missing or broken.
        """
        if options.checkpoint is None:
            return None
        prefix, epoch = options.checkpoint
        check_data(checkpoint_paths(prefix, epoch), world)
        # Half precision of a GPU would gain little here, and needs a graph of its own.
        dtype = "bfloat16" if student.dtype == "bfloat16" else "float32"
        network = Backbone.load(
            prefix, epoch, image_size=image_size, ctx=student.context, dtype=dtype
        )
        images = {"data": (1, 3, *image_size)}
        graphs = network.graph, student.graph
        found, wanted = (one.infer_shape(**images)[1][0][1] for one in graphs)
        if found != wanted:
            raise ConfigError(
                f"--teacher {options.teacher} has embeddings of {found} numbers, those that are "
                f"trained have {wanted}; give --embedding-size {found}, or another teacher"
            )
        return cls(network.inference(), options.teacher_weight, world)

    def add_to(self, result: HeadStep, features: Any, images: NDArray[np.uint8]) -> HeadStep:
        """Return the result of the head with the teacher's part of loss and gradient; queued.

        As the head's, the loss is the mean over the global batch, and the gradient the exact one of
        this rank's features [b, D], those of ``images`` [b, 3, H, W], so that gradients are summed
        over the ranks.

        Raises:
            DataError: the teacher's embeddings are not finite.
        """
        taught = self._infer(images)
        check_finite(taught)
        taught_bD = mx.nd.array(normalized(taught), ctx=features.context)
        features_bD = features.detach()
        norms_b1 = mx.nd.norm(features_bD, axis=1, keepdims=True)
        inverse_norms_b1 = 1 / mx.nd.maximum(norms_b1, _SMALLEST_NORM)
        units_bD = features_bD * inverse_norms_b1
        cosines_b1 = (units_bD * taught_bD).sum(axis=1, keepdims=True)
        share = 1 / (len(images) * self._world.size)
        # Into the same array each time: so no reduction begins before the last one has ended.
        distance = mx.nd.sum((1 - cosines_b1) * share, out=self._distance)
        self._distance = self._world.allreduce(distance, "teacher.loss")
        if not self._weight:
            return result
        # The derivative of a cosine by an embedding is perpendicular to it.
        slopes_bD = (units_bD * cosines_b1 - taught_bD) * inverse_norms_b1
        return replace(
            result,
            loss=result.loss + self._weight * self._distance,
            gradient=result.gradient + (self._weight * share) * slopes_bD,
        )

    def averages(self) -> dict[str, float]:
        """The mean of 1 - cosine over the last global batch, without the weight."""
        assert self._distance is not None, "averages of an update"
        return {"teacher_loss": float(self._distance.asscalar())}
