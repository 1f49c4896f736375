"""A trained network as a teacher: its embeddings are learned beside the classes.

A small network that is trained on classes alone has to find out by itself where each image belongs.
A larger one has found it out: for each image it gives a direction, which says more than the class
(distillation of embeddings by their cosine: Hinton et al., "Distilling the Knowledge in a Neural
Network", 2015, for the idea; Duong et al., "ShrinkTeaNet", 2019, arXiv:1905.10620, section 3.3, for
the angle between embeddings). The teacher sees the very images of the update, augmented as they
are, in the form for inference, and is not changed.

Shapes: b batch of a rank, B global batch, D embedding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from backbones.inference import Infer
from backbones.model import Backbone
from backbones.network import checkpoint_paths
from evaluation.features import check_finite, normalized
from parallel.world import World
from partial_fc.head import HeadStep
from runtime.errors import ConfigError
from runtime.mxnet import mx
from training import same_data
from training.config.faces import TeacherOptions

# Below it an embedding has no direction.
_SMALLEST_NORM = 1e-12


class Teacher:
    """Adds ``weight`` times the mean of 1 - cosine(embedding, teacher's embedding) to a loss."""

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
        same_data.check(checkpoint_paths(prefix, epoch), world)
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
