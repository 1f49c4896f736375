"""Partial FC in MXNet, written formula by formula as in its description.

It uses the operators of the same names and automatic differentiation: normalize, multiply, subtract
the margin times the one-hot labels, compute the probabilities, pass their difference from the
one-hot labels to ``backward``, update the sampled rows and copy them back. The columns of the
logits are on several ranks, so the softmax is written with its maxima and sums, which the ranks
would have to reduce: MXNet's fused softmax cannot do that. The results are those of the toolkit's
head.

Shapes: B global batch, D embedding, S sampled rows, C classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
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
from runtime.mxnet import mx

Int64Array = NDArray[np.int64]


class TextbookHead(Subject):
    """All class centers of a job on one rank, in MXNet arrays."""

    def __init__(self, **sizes: Any) -> None:
        """Args: sizes of a ``HeadCase``."""
        case = HeadCase(**sizes)
        self.centers = mx.nd.array(case.centers())
        self._momenta = mx.nd.zeros_like(self.centers)
        self._features = mx.nd.array(case.features())
        self._labels = case.labels()
        self._num_rows = case.rows
        self._generator = np.random.default_rng(SEED)
        mx.nd.waitall()

    @override
    def step(self) -> None:
        self.train(self._sample())
        mx.nd.waitall()

    def train(self, rows: Int64Array) -> tuple[Any, Any]:
        """Update the sorted ``rows`` [S]; returns the loss and the features' gradient [B, D]."""
        everything = rows.size == self.centers.shape[0]
        rows_S = mx.nd.array(rows, dtype="int32")
        centers_SD = self.centers if everything else mx.nd.take(self.centers, rows_S)
        momenta_SD = self._momenta if everything else mx.nd.take(self._momenta, rows_S)
        targets_B = mx.nd.array(np.searchsorted(rows, self._labels), dtype="int32")

        loss = self._differentiate(centers_SD, targets_B)
        mx.nd.sgd_mom_update(
            centers_SD,
            centers_SD.grad,
            momenta_SD,
            lr=LEARNING_RATE,
            momentum=MOMENTUM,
            wd=WEIGHT_DECAY,
            out=centers_SD,
        )
        if not everything:
            self.centers[rows_S] = centers_SD
            self._momenta[rows_S] = momenta_SD
        return loss, self._features.grad

    def _differentiate(self, centers_SD: Any, targets_B: Any) -> Any:
        self._features.attach_grad()
        centers_SD.attach_grad()
        with mx.autograd.record():
            units_BD = mx.nd.L2Normalization(self._features)
            cosines_BS = mx.nd.dot(units_BD, mx.nd.L2Normalization(centers_SD), transpose_b=True)
            one_hot_BS = mx.nd.one_hot(targets_B, centers_SD.shape[0])
            logits_BS = SCALE * (cosines_BS - MARGIN * one_hot_BS)
        maxima_B1 = mx.nd.max(logits_BS, axis=1, keepdims=True)
        exponentials_BS = mx.nd.exp(mx.nd.broadcast_sub(logits_BS, maxima_B1))
        sums_B1 = mx.nd.sum(exponentials_BS, axis=1, keepdims=True)
        probabilities_BS = mx.nd.broadcast_div(exponentials_BS, sums_B1)
        logits_BS.backward((probabilities_BS - one_hot_BS) / targets_B.size)
        return -mx.nd.mean(mx.nd.log(mx.nd.pick(probabilities_BS, targets_B)))

    def _sample(self) -> Int64Array:
        """All positives and the negatives with the highest of random scores."""
        num_classes = self.centers.shape[0]
        if self._num_rows == num_classes:
            return np.arange(num_classes)
        scores = self._generator.random(num_classes)
        scores[self._labels] = 2.0
        return np.sort(np.argpartition(scores, -self._num_rows)[-self._num_rows :])
