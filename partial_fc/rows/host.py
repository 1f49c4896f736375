"""Rows in the host's memory, with Numba kernels.

The small passes over features are kernels, too: on a CPU MXNet's broadcasting operators take some
3 ms each for 256 × 512 numbers, and the six of a step a tenth of its time.

Shapes: see ``partial_fc.rows.interface``.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from partial_fc.bfloat16 import narrowed, widened
from partial_fc.initial import zeros
from partial_fc.optimizers import RowGradients, RowOptimizer
from partial_fc.rows import host_logits
from partial_fc.rows.interface import SMALLEST_NORM, Logits, Negatives, Placed, Rows
from partial_fc.shard import Sample
from runtime.engine import settle
from runtime.kernels.compiled import parallel_kernel, prange
from runtime.kernels.memory import PART, prefetch_part
from runtime.kernels.sums import product_of
from runtime.ndarray import array_of, new_array, queue


class HostRows(Rows):
    """Rows of NumPy arrays.

    The kernels are queued on MXNet's engine among the operators of the step, and nothing is waited
    for before the rows are looked at.
    """

    def __init__(self, centers_CD: NDArray[np.float32], optimizer: RowOptimizer) -> None:
        """Take over the centers, float32 [C, D], contiguous, and update them in place."""
        assert centers_CD.dtype == np.float32 and centers_CD.flags.c_contiguous
        self._optimizer = optimizer
        self._arrays: dict[str, NDArray[Any]] = {"centers": centers_CD}
        for name, state in optimizer.states.items():
            self._arrays[name] = zeros(state.shape(*centers_CD.shape), state.dtype)
        self._copies: dict[str, NDArray[Any]] = {}
        # Stands for the rows where the engine orders what reads and what writes them.
        self._order = new_array(1)

    @property
    @override
    def row_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape[1:] for name, array in self._arrays.items()}

    @override
    def place(self, sample: Sample) -> Placed:
        return Placed(sample.rows, sample.targets, array_of(sample.local))

    @override
    def gather(self, placed: Placed, part: slice, units_KD: Any, gradient_KD: Any) -> RowGradients:
        rows = placed.rows[part]
        inverse_norms_K = new_array(rows.size)
        arguments = self._arrays["centers"], rows, units_KD, inverse_norms_K
        queue(_normalize, *arguments, reads=[self._order], writes=[units_KD, inverse_norms_K])
        return RowGradients(rows, inverse_norms_K, gradient_KD)

    @override
    def update(self, gathered: RowGradients, lr: float) -> None:
        queue(self._optimizer.update_host, self._arrays, gathered, lr, writes=[self._order])

    @override
    def settle(self) -> None:
        settle(self._order)

    @override
    def get_targets(self, logits: Logits, placed: Placed) -> Any:
        targets_B = new_array(logits.batch)
        entries = host_logits.entries(logits, placed.entries)
        queue(host_logits.take_entries, logits.numbers, entries, targets_B, writes=[targets_B])
        return targets_B

    @override
    def exponentiate(
        self, logits: Logits, placed: Placed, targets_B: Any, rules: Optional[Negatives] = None
    ) -> tuple[Any, Any]:
        outputs = new_array(logits.batch), new_array(logits.batch)
        targets = host_logits.entries(logits, placed.entries), placed.local_B, targets_B
        arguments = logits.numbers, host_logits.bounds(logits), targets, *outputs
        queue(
            host_logits.exponentiate,
            *(*arguments, host_logits.numbers_of(rules, logits.batch)),
            writes=[logits.numbers, *outputs],
        )
        return outputs

    @override
    def set_targets(self, logits: Logits, placed: Placed, values_B: Any) -> None:
        entries = host_logits.entries(logits, placed.entries)
        arguments = logits.numbers, entries, placed.local_B, values_B
        queue(host_logits.put_entries, *arguments, writes=[logits.numbers])

    @override
    def export(self) -> dict[str, NDArray[Any]]:
        self.settle()
        return dict(self._arrays)

    @override
    def snapshot(self) -> dict[str, NDArray[Any]]:
        self.settle()
        # Into the same memory each time: new pages from the system take longer to get than to
        # fill, on a virtual machine ten times as long.
        if not self._copies:
            self._copies = {name: np.empty_like(array) for name, array in self._arrays.items()}
        for name, array in self._arrays.items():
            np.copyto(self._copies[name], array)
        return dict(self._copies)

    @override
    def load(self, name: str, first: int, values: NDArray[Any]) -> None:
        self.settle()
        self._arrays[name][first : first + len(values)] = values

    @override
    def normalize(self, features_bD: Any) -> tuple[Any, Any]:
        # A backbone's last operator may leave them in a layout of oneDNN.
        features_bD.wait_to_read()
        units_bD = new_array(*features_bD.shape)
        inverse_norms_b = new_array(len(features_bD))
        rows, outputs = np.arange(len(features_bD)), (units_bD, inverse_norms_b)
        queue(_normalize, features_bD, rows, *outputs, writes=outputs)
        return units_bD, inverse_norms_b.reshape((-1, 1))

    @override
    def multiply_rows(self, matrix_BD: Any, factors_B1: Any) -> Any:
        product_BD = new_array(*matrix_BD.shape)
        queue(_multiply_rows, matrix_BD, factors_B1, product_BD, writes=[product_BD])
        return product_BD

    @override
    def multiply_shares(self, shares_NBD: Any, units_BD: Any, factors_B1: Any) -> tuple[Any, Any]:
        outputs = new_array(*units_BD.shape), new_array(*units_BD.shape)
        queue(_multiply_shares, shares_NBD, units_BD, factors_B1, *outputs, writes=outputs)
        return outputs

    @override
    def project(self, gradient_bD: Any, units_bD: Any, inverse_norms_b1: Any) -> Any:
        projected_bD = new_array(*gradient_bD.shape)
        arguments = gradient_bD, units_bD, inverse_norms_b1, projected_bD
        queue(_project, *arguments, writes=[projected_bD])
        return projected_bD


@parallel_kernel
def _normalize(vectors, rows, normalized, inverse_norms):  # type: ignore[no-untyped-def]
    for s in prange(rows.size):
        following = rows[min(s + 2, rows.size - 1)]
        vector, unit = vectors[rows[s]], normalized[s]
        squares = product_of(vector, vector)
        inverse = np.float32(1.0) / max(np.sqrt(squares), np.float32(SMALLEST_NORM))
        inverse_norms[s] = inverse
        for start in range(0, vector.size, PART):
            prefetch_part(vectors, following, start)
            for d in range(start, min(start + PART, vector.size)):
                unit[d] = narrowed(vector[d] * inverse, unit)


@parallel_kernel
def _multiply_rows(matrix, factors, product):  # type: ignore[no-untyped-def]
    for b in prange(matrix.shape[0]):
        for d in range(matrix.shape[1]):
            product[b, d] = matrix[b, d] * factors[b, 0]


@parallel_kernel
def _multiply_shares(shares, units, factors, total, scaled):  # type: ignore[no-untyped-def]
    for b in prange(total.shape[0]):
        for d in range(total.shape[1]):
            total[b, d] = widened(shares[0, b, d])
            scaled[b, d] = units[b, d] * factors[b, 0]
        for n in range(1, shares.shape[0]):
            for d in range(total.shape[1]):
                total[b, d] += widened(shares[n, b, d])
        for d in range(total.shape[1]):
            total[b, d] *= factors[b, 0]


@parallel_kernel
def _project(gradient, units, inverse_norms, projected):  # type: ignore[no-untyped-def]
    for b in prange(gradient.shape[0]):
        slope, unit = gradient[b], units[b]
        radial = product_of(slope, unit)
        for d in range(slope.size):
            projected[b, d] = (slope[d] - radial * unit[d]) * inverse_norms[b, 0]
