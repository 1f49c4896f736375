"""The toolkit's classifiers on images of CIFAR-10's size: inference and training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from backbones import classifiers
from backbones.classifiers import Normalization
from backbones.classifiers.classifier import Classifier
from backbones.network import initial_weights
from backbones.options import ClassifierOptions
from benchmarks.worker import Subject
from parallel.world import LoneWorld
from runtime.mxnet import mx
from training.config.schedule import OptimizerOptions
from training.update.optimizer import BackboneOptimizer

_SEED = 0
_CLASSES = 10
_IMAGE_SHAPE = (3, 32, 32)
NORMALIZATION = Normalization((0.5,) * 3, (0.25,) * 3)


def write_graph(
    model: str, folder: Path, normalization: Normalization = NORMALIZATION, seed: int = _SEED
) -> None:
    """Write a classifier's graph and first weights, for ``pytorch_graph``."""
    graph = classifiers.build(model, classes=_CLASSES, normalization=normalization)
    weights = initial_weights(graph, _IMAGE_SHAPE, seed)
    (folder / "graph.json").write_text(graph.tojson())
    np.savez(folder / "weights.npz", **{name: one.asnumpy() for name, one in weights.items()})


class ClassifierInference(Subject):
    """What validation calls: outputs with the weights of this moment."""

    def __init__(self, model: str, batch: int, dtype: str = "float32") -> None:
        """Args: the model's name; images of a step; the number format of its maps."""
        self._create(model, dtype)
        self._infer = self._classifier.inference()
        self._images = _images(batch)

    def _create(self, model: str, dtype: str) -> None:
        self._classifier = Classifier.create(
            ClassifierOptions(model=model, dtype=dtype),
            classes=_CLASSES,
            image_shape=_IMAGE_SHAPE,
            normalization=NORMALIZATION,
        )
        self._classifier.hybridize()

    @override
    def step(self) -> None:
        self._infer(self._images)


class ClassifierTraining(ClassifierInference):
    """Forward pass, backward pass and update."""

    def __init__(self, model: str, batch: int, dtype: str = "float32") -> None:
        """Args: as above."""
        self._create(model, dtype)
        self._batch = mx.nd.array(_images(batch), dtype="uint8")
        self._labels = mx.nd.array(np.random.default_rng(0).integers(0, _CLASSES, batch))
        self._optimizer = BackboneOptimizer(
            OptimizerOptions(momentum=0.9, wd=5e-4),
            self._classifier.parameters,
            LoneWorld(),
            dtype="float32",
        )
        self._loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        self._updates = 0

    @override
    def step(self) -> None:
        with mx.autograd.record():
            loss = self._loss(self._classifier(self._batch), self._labels).mean()
        loss.backward()
        reduced = self._optimizer.reduce(self._updates)
        self._optimizer.update(self._updates, lr=1e-3)
        # A run checks every update, too.
        assert reduced.are_finite(())
        self._updates += 1
        mx.nd.waitall()


def _images(batch: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (batch, *_IMAGE_SHAPE), np.uint8)
