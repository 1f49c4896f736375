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
from partial_fc.head import TYPES, HeadStep, PartialFC, center_logits, product_gradients
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from runtime.mxnet import mx


class OneRank:
    """A world of one rank, whose collectives return their arguments."""

    rank = 0
    size = 1

    def allgather(self, array: Any, name: str) -> Any:
        """Return the array of the only rank."""
        return array

    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        """Return the sum or the maximum over one rank."""
        return array

    def wait(self, array: Any) -> None:
        """Return at once."""


class ToolkitHead(Subject):
    """``partial_fc`` on one rank, sampling included."""

    def __init__(self, **sizes: Any) -> None:
        """Args: sizes of a ``HeadCase``."""
        case = HeadCase(**sizes)
        self.head = PartialFC.create(
            HeadOptions(
                margins=(1.0, 0.0, MARGIN),
                scale=SCALE,
                head_dtype=case.dtype,
                sample_ratio=case.ratio,
            ),
            (case.classes, case.embedding),
            OneRank(),
            mx.cpu(),
            optimizer=SGD(MOMENTUM, WEIGHT_DECAY),
            seed=SEED,
        )
        # Zeros take no memory before they are written to, which would look like the step's.
        self.head.rows.export()["momenta"].fill(0.0)
        self._features = mx.nd.array(case.features())
        self._labels = case.labels()
        self._updates = 0
        mx.nd.waitall()

    def train(self) -> HeadStep:
        """Take one step on the rows that the head samples."""
        self._updates += 1
        return self.head.step(self._features, self._labels, self._updates, LEARNING_RATE)

    @override
    def step(self) -> None:
        self.train()
        mx.nd.waitall()


class Products(Subject):
    """The products of ``partial_fc.head`` on arrays of the step's shapes, and nothing else."""

    def __init__(self, **sizes: Any) -> None:
        """Args: sizes of a ``HeadCase``."""
        case = HeadCase(**sizes)
        self._features_BD = mx.nd.random.normal(shape=(case.batch, case.embedding))
        dtype = TYPES[case.dtype]
        centers_SD = mx.nd.random.normal(shape=(case.rows, case.embedding))
        self._centers_SD = mx.nd.amp_cast(centers_SD, dtype=dtype)
        self._logits_BS = mx.nd.zeros((case.batch, case.rows), dtype=dtype)
        self._gradient_SD = mx.nd.zeros_like(self._centers_SD)
        mx.nd.waitall()

    @override
    def step(self) -> None:
        center_logits(self._features_BD, self._centers_SD, out=self._logits_BS)
        product_gradients(
            self._logits_BS, self._features_BD, self._centers_SD, out=self._gradient_SD
        )
        mx.nd.waitall()
