"""The toolkit's head, and the three matrix products that every head needs."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from benchmarks.head_case import (
    LEARNING_RATE,
    MARGIN,
    MOMENTUM,
    SCALE,
    SEED,
    WEIGHT_DECAY,
    HeadCase,
)
from benchmarks.worker import Subject
from parallel.world import LoneWorld
from partial_fc.blocks import Products as HeadProducts
from partial_fc.head import TYPES, PartialFC
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from runtime.mxnet import mx


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
        self._head.step(self._features, self._labels, self._updates, LEARNING_RATE)
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
