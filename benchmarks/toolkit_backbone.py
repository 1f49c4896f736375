"""The toolkit's backbone as a run uses it on a CPU, with recomputation, and as its plain graph."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

import backbones
from backbones.model import Backbone
from backbones.options import BackboneOptions
from benchmarks.backbone_case import (
    EMBEDDING,
    IMAGE_SIZE,
    LEARNING_RATE,
    MOMENTUM,
    SEED,
    WEIGHT_DECAY,
    BackboneCase,
)
from benchmarks.worker import Subject
from parallel.world import join_ranks
from runtime.mxnet import mx
from training.config.schedule import OptimizerOptions
from training.update.optimizer import BackboneOptimizer


class ToolkitBackbone(Subject):
    """``backbones`` with the optimizer of a run."""

    def __init__(self, **sizes: Any) -> None:
        """Args: the fields of a ``BackboneCase``."""
        case = BackboneCase(**sizes)
        self.backbone = self._create(case)
        self.backbone.hybridize()
        self._prepare()
        self._optimizer = BackboneOptimizer(
            OptimizerOptions(momentum=MOMENTUM, wd=WEIGHT_DECAY),
            self.backbone.parameters,
            join_ranks(),
            dtype="float32",
        )
        self._images = mx.nd.array(case.images())
        self._gradient = mx.nd.array(case.gradient())
        self._updates = 0
        mx.nd.waitall()

    recompute = False

    def _create(self, case: BackboneCase) -> Backbone:
        options = BackboneOptions(
            dtype=case.dtype,
            network=case.network,
            embedding_size=EMBEDDING,
            recompute=self.recompute,
        )
        return Backbone.create(options, seed=SEED, image_size=IMAGE_SIZE)

    def _prepare(self) -> None:
        """Change the created network before its first step."""

    @override
    def step(self) -> None:
        self._updates += 1
        with mx.autograd.record():
            features = self.backbone(self._images)
        self.backbone.backward(features, self._gradient)
        reduced = self._optimizer.reduce(self._updates)
        self._optimizer.update(self._updates, LEARNING_RATE)
        # A run checks every update, too.
        assert reduced.are_finite(())
        mx.nd.waitall()


class RecomputingBackbone(ToolkitBackbone):
    """The same with ``--recompute``."""

    recompute = True


class PlainBackbone(ToolkitBackbone):
    """The same with the graph as it is exported, which is the one that runs on a GPU."""

    def _create(self, case: BackboneCase) -> Backbone:
        parameters = super()._create(case).parameters
        graph = backbones.build(case.network, embedding_size=EMBEDDING)
        weights = {name: parameter.data() for name, parameter in parameters.items()}
        return Backbone(graph, graph, weights, mx.cpu())
