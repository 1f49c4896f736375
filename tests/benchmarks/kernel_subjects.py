"""Forward and backward pass without the update, as of this processor or, pretended, with AVX-512.

The gradient of the outputs is given: the loss is MXNet's, and not of the network.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import numpy as np

from backbones import names
from backbones.classifiers.classifier import Classifier
from backbones.graph.onednn import blocked
from backbones.model import Backbone
from backbones.options import BackboneOptions, ClassifierOptions
from benchmarks.toolkit_classifier import NORMALIZATION
from benchmarks.worker import Subject
from runtime.mxnet import mx
from tests.support import other_processor

CLASSES = 10
IMAGE_SHAPE = (3, 32, 32)
FACE_SHAPE = (3, 112, 112)


class Training(Subject):
    """A ``plain`` graph is as it was built, without the form for processors."""

    def __init__(
        self,
        network: str,
        batch: int,
        avx512: bool = False,
        plain: bool = False,
        dtype: str = "float32",
    ) -> None:
        # Verbose from the first primitive on: oneDNN reads the variable once.
        assert os.environ["DNNL_VERBOSE"] == "1"
        if avx512:
            other_processor.pretend()
        if plain:
            blocked.rewrite = lambda symbol, *_: symbol
        self.network = create(network, dtype)
        self.network.hybridize()
        shape = FACE_SHAPE if network in names() else IMAGE_SHAPE
        images = np.random.default_rng(0).integers(0, 256, (batch, *shape), np.uint8)
        self.images = mx.nd.array(images, dtype="uint8")

    def step(self) -> None:
        with mx.autograd.record():
            outputs = self.network(self.images)
        self.network.backward(outputs, mx.nd.ones(outputs.shape))
        mx.nd.waitall()


class Inference(Training):
    """What validation and verification call."""

    def step(self) -> None:
        self.infer(self.images.asnumpy())

    @cached_property
    def infer(self) -> Any:
        return self.network.inference()


def create(network: str, dtype: str) -> Any:
    if network in names():
        return Backbone.create(BackboneOptions(network=network, dtype=dtype))
    return Classifier.create(
        ClassifierOptions(model=network, dtype=dtype),
        classes=CLASSES,
        image_shape=IMAGE_SHAPE,
        normalization=NORMALIZATION,
    )
