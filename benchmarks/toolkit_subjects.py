"""The toolkit's part of the comparisons: networks on a CPU, as a run uses them, and the head.

A backbone has images of faces, a classifier those of CIFAR-10. ``write_files`` writes what the same
network in PyTorch (``pytorch_subjects``) needs: graph, first weights, images and gradient.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

import backbones
from backbones import classifiers
from backbones.classifiers import Normalization
from backbones.model import Backbone, Classifier
from backbones.network import Network, initial_weights
from backbones.options import BackboneOptions, ClassifierOptions
from benchmarks import head_case
from benchmarks.head_case import MARGIN, MOMENTUM, SCALE, SEED, WEIGHT_DECAY, HeadCase
from benchmarks.worker import Subject
from parallel.world import LoneWorld
from partial_fc.blocks import Products as HeadProducts
from partial_fc.head import TYPES, PartialFC
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from runtime.mxnet import mx
from training.config.options import OptimizerOptions
from training.update.optimizer import BackboneOptimizer

LEARNING_RATE = 1e-3
_EMBEDDING, _FACE = 512, (3, 112, 112)
_CLASSES, _IMAGE = 10, (3, 32, 32)
_NORMALIZATION = Normalization((0.5,) * 3, (0.25,) * 3)


def is_backbone(network: str) -> bool:
    """True for the name of a backbone, False for that of a classifier."""
    return network in backbones.names()


def arrays(network: str, batch: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return images, and the gradient of the outputs, as small as that of a mean loss."""
    shape, outputs = (_FACE, _EMBEDDING) if is_backbone(network) else (_IMAGE, _CLASSES)
    generator = np.random.default_rng(SEED)
    images = generator.integers(0, 256, (batch, *shape), np.uint8)
    noise = generator.standard_normal((batch, outputs), dtype=np.float32)
    return images, noise / np.float32(batch * np.sqrt(outputs))


def write_files(
    network: str,
    folder: Path,
    batch: int = 1,
    normalization: Normalization = _NORMALIZATION,
    seed: int = SEED,
) -> None:
    """Write graph, first weights, images and gradient of a network, for ``pytorch_graph``."""
    if is_backbone(network):
        graph, shape = backbones.build(network, embedding_size=_EMBEDDING), _FACE
    else:
        graph = classifiers.build(network, classes=_CLASSES, normalization=normalization)
        shape = _IMAGE
    weights = initial_weights(graph, shape, seed)
    (folder / "graph.json").write_text(graph.tojson())
    np.savez(folder / "weights.npz", **{name: one.asnumpy() for name, one in weights.items()})
    images, gradient = arrays(network, batch)
    np.savez(folder / "batch.npz", images=images, gradient=gradient)


class ToolkitTraining(Subject):
    """Forward pass, backward pass and update."""

    def __init__(self, network: str, batch: int, dtype: str = "float32", form: str = "") -> None:
        """Create the network, its optimizer and a batch.

        Args:
            network: its name.
            batch: images of a step.
            dtype: the number format of its maps.
            form: of a backbone: plain, the graph as it is exported, or recompute.
        """
        self.network = _created(network, dtype, recompute=form == "recompute")
        if form == "plain":
            graph = backbones.build(network, embedding_size=_EMBEDDING)
            weights = {name: one.data() for name, one in self.network.parameters.items()}
            self.network = Backbone(graph, graph, weights, mx.cpu())
        self.network.hybridize()
        self._optimizer = BackboneOptimizer(
            OptimizerOptions(momentum=MOMENTUM, wd=WEIGHT_DECAY),
            self.network.parameters,
            LoneWorld(),
            dtype="float32",
        )
        images, gradient = arrays(network, batch)
        self._images = mx.nd.array(images, dtype="float32" if is_backbone(network) else "uint8")
        self._gradient = mx.nd.array(gradient)
        self._updates = 0
        mx.nd.waitall()

    @override
    def step(self) -> None:
        self._updates += 1
        with mx.autograd.record():
            outputs = self.network(self._images)
        self.network.backward(outputs, self._gradient)
        reduced = self._optimizer.reduce(self._updates)
        self._optimizer.update(self._updates, LEARNING_RATE)
        # A run checks every update, too.
        assert reduced.are_finite(())
        mx.nd.waitall()


class ToolkitInference(Subject):
    """The graph of inference, as verification and validation call it, or the one that trains."""

    def __init__(
        self, network: str, batch: int, dtype: str = "float32", trained: bool = False
    ) -> None:
        """Create the network.

        Args:
            network: its name.
            batch: images of a step.
            dtype: the number format of its maps.
            trained: whether the graph that trains is measured.
        """
        created = _created(network, dtype)
        _vary_slopes(created)
        created.hybridize()
        self._infer = created.extract if trained else created.inference()
        self._images = arrays(network, batch)[0]

    @override
    def step(self) -> None:
        self._infer(self._images)


def _created(name: str, dtype: str, *, recompute: bool = False) -> Network:
    if is_backbone(name):
        options = BackboneOptions(
            network=name, dtype=dtype, embedding_size=_EMBEDDING, recompute=recompute
        )
        return Backbone.create(options, seed=SEED, image_size=_FACE[1:])
    return Classifier.create(
        ClassifierOptions(model=name, dtype=dtype),
        classes=_CLASSES,
        image_shape=_IMAGE,
        normalization=_NORMALIZATION,
        seed=SEED,
    )


def _vary_slopes(network: Any) -> None:
    """Give every channel a slope of its own, as training does."""
    rng = np.random.default_rng(SEED)
    for name, parameter in network.parameters.items():
        if "relu" in name and parameter.shape:
            parameter.set_data(mx.nd.array(rng.uniform(-1, 1, parameter.shape)))


class ToolkitHead(Subject):
    """``partial_fc`` on one rank, sampling included."""

    def __init__(self, **sizes: Any) -> None:
        """Args: sizes of a ``HeadCase``."""
        case = HeadCase(**sizes)
        self._head = PartialFC.create(
            HeadOptions(
                margins=(1.0, 0.0, MARGIN),
                scale=SCALE,
                head_dtype=case.dtype,
                sample_ratio=case.ratio,
            ),
            (case.classes, case.embedding),
            LoneWorld(),
            mx.cpu(),
            optimizer=SGD(MOMENTUM, WEIGHT_DECAY),
            seed=SEED,
        )
        self._head.rows.load("centers", 0, case.centers())
        # Zeros take no memory before they are written to, which would look like the step's.
        self._head.rows.export()["momenta"].fill(0.0)
        self._features = mx.nd.array(case.features())
        self._labels = case.labels()
        self._updates = 0
        mx.nd.waitall()

    @override
    def step(self) -> None:
        self._updates += 1
        # As in training, where the labels of the next batch are known.
        self._head.prepare(self._labels, self._updates + 1)
        self._head.step(self._features, self._labels, self._updates, head_case.LEARNING_RATE)
        mx.nd.waitall()


class Products(Subject):
    """The products of ``partial_fc.head`` on arrays of the step's shapes, and nothing else."""

    def __init__(self, **sizes: Any) -> None:
        """Args: sizes of a ``HeadCase``."""
        case = HeadCase(**sizes)
        self._features_BD = mx.nd.random.normal(shape=(case.batch, case.embedding))
        self._products = HeadProducts(TYPES[case.dtype])
        self._shape = case.batch, case.rows, case.embedding
        self._products.begin(self._shape, mx.cpu())
        for block in self._products.blocks:
            units_KD = mx.nd.random.normal(shape=block.units_KD.shape)
            mx.nd.amp_cast(units_KD, dtype=TYPES[case.dtype]).copyto(block.units_KD)
        mx.nd.waitall()

    @override
    def step(self) -> None:
        products = self._products
        products.begin(self._shape, mx.cpu())
        products.set_features(self._features_BD)
        for block in products.blocks:
            products.multiply(block)
        products.features_gradient()
        products.set_features(self._features_BD)
        for block in products.blocks:
            products.rows_gradient(block)
        mx.nd.waitall()
