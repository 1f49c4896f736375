"""The backbone of this project, as it runs on a CPU and as its plain graph would."""

from __future__ import annotations

from typing import Any

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
from parallel.world import HorovodWorld
from runtime.mxnet import mx
from training.config.schedule import OptimizerOptions
from training.update.optimizer import BackboneOptimizer


class OurBackbone:
    """``backbones`` with the optimizer of a run."""

    def __init__(self, **sizes: Any) -> None:
        """Args: the fields of a ``BackboneCase``."""
        case = BackboneCase(**sizes)
        self.backbone = self._create(case)
        self.backbone.hybridize()
        self._optimizer = BackboneOptimizer(
            OptimizerOptions(momentum=MOMENTUM, wd=WEIGHT_DECAY),
            self.backbone.parameters,
            HorovodWorld(),
            dtype="float32",
        )
        self._images = mx.nd.array(case.images())
        self._gradient = mx.nd.array(case.gradient())
        self._updates = 0
        mx.nd.waitall()

    def _create(self, case: BackboneCase) -> Backbone:
        return Backbone.create(
            BackboneOptions(network=case.network, embedding_size=EMBEDDING),
            seed=SEED,
            image_size=IMAGE_SIZE,
        )

    def step(self) -> None:
        """See ``Subject.step``."""
        self._updates += 1
        with mx.autograd.record():
            features = self.backbone(self._images)
        self.backbone.backward(features, self._gradient)
        are_finite = self._optimizer.reduce()
        self._optimizer.update(self._updates, LEARNING_RATE)
        # Every update of a run is looked at, too.
        assert are_finite()
        mx.nd.waitall()


class RecomputingBackbone(OurBackbone):
    """The same with ``--recompute``."""

    def _create(self, case: BackboneCase) -> Backbone:
        return Backbone.create(
            BackboneOptions(network=case.network, embedding_size=EMBEDDING, recompute=True),
            seed=SEED,
            image_size=IMAGE_SIZE,
        )


class PlainBackbone(OurBackbone):
    """The same with the graph as it is exported, which is the one that runs on a GPU."""

    def _create(self, case: BackboneCase) -> Backbone:
        parameters = super()._create(case).parameters
        graph = backbones.build(case.network, embedding_size=EMBEDDING)
        weights = {name: parameter.data() for name, parameter in parameters.items()}
        return Backbone(graph, graph, weights, mx.cpu())
