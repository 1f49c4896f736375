"""Rows in a device's memory, with MXNet operators; cut into tensors below 2^31 elements.

Shapes: see ``partial_fc.rows``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from partial_fc.negatives import LEFT_OUT, Negatives
from partial_fc.optimizers import RowOptimizer
from partial_fc.rows import SMALLEST_NORM, Array, Rows
from partial_fc.shard import Int64Array
from runtime.mxnet import mx
from runtime.ndarray import invoke

_MAX_ELEMENTS = 2**31 - 1
# The rules for negatives need temporary arrays, made for one of so many parts of the logits.
_PARTS = 16


class DeviceRows(Rows):
    """Blocks of rows in MXNet's arrays."""

    def __init__(
        self,
        centers_CD: Array,
        optimizer: RowOptimizer,
        context: Any,
        max_elements: int = _MAX_ELEMENTS,
    ) -> None:
        """Copies ``centers_CD`` (float32 [C, D]) to the device."""
        self._optimizer = optimizer
        self._context = context
        self._height = max(1, max_elements // centers_CD.shape[1])
        starts = range(0, len(centers_CD), self._height)
        blocks = (centers_CD[start : start + self._height] for start in starts)
        centers = [mx.nd.array(block, ctx=context) for block in blocks]
        self._arrays = {"centers": centers}
        for name, state in optimizer.states.items():
            self._arrays[name] = [
                mx.nd.zeros(state.shape(*block.shape), ctx=context, dtype=state.dtype)
                for block in centers
            ]

    @property
    @override
    def row_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: blocks[0].shape[1:] for name, blocks in self._arrays.items()}

    def _cut(self, rows: Int64Array) -> Iterator[tuple[int, slice, Any]]:
        """The number of each block that has some of the sorted ``rows``; which; rows in it."""
        bounds = np.searchsorted(rows, self._height * np.arange(len(self._arrays["centers"]) + 1))
        for block in np.flatnonzero(np.diff(bounds)):
            part = slice(int(bounds[block]), int(bounds[block + 1]))
            inside = rows[part] - block * self._height
            yield int(block), part, mx.nd.array(inside, ctx=self._context, dtype="int32")

    @override
    def gather(self, rows: Int64Array, normalized_SD: Any) -> Any:
        for block, part, inside in self._cut(rows):
            normalized_SD[part] = mx.nd.take(self._arrays["centers"][block], inside)
        norms_S = mx.nd.norm(normalized_SD, axis=1)
        inverse_norms_S = 1.0 / mx.nd.maximum(norms_S, SMALLEST_NORM)
        mx.nd.broadcast_mul(normalized_SD, inverse_norms_S.expand_dims(1), out=normalized_SD)
        return inverse_norms_S

    @override
    def update(self, rows: Int64Array, inverse_norms_S: Any, gradient_SD: Any, lr: float) -> None:
        for block, part, inside in self._cut(rows):
            sampled = {
                name: mx.nd.take(blocks[block], inside) for name, blocks in self._arrays.items()
            }
            inverse_norms_S1 = inverse_norms_S[part].expand_dims(1)
            units_SD = sampled["centers"] * inverse_norms_S1
            tangent_SD = self.project(gradient_SD[part], units_SD, inverse_norms_S1)
            updated = self._optimizer.update_device(sampled, tangent_SD, lr)
            for name, values in updated.items():
                _set_entries(self._arrays[name][block], inside.expand_dims(0), values)

    @override
    def maxima(self, logits_BS: Any, rules: Optional[Negatives] = None) -> Any:
        if rules is None:
            return mx.nd.max(logits_BS, axis=1)
        maxima = [
            mx.nd.max(_ruled(logits_BS[part], part, rules)[0], axis=1)
            for part in _parts(logits_BS.shape[0])
        ]
        return mx.nd.concat(*maxima, dim=0)

    @override
    def exponentiate(self, logits_BS: Any, shift_B: Any, rules: Optional[Negatives] = None) -> Any:
        if rules is None:
            mx.nd.broadcast_sub(logits_BS, shift_B.expand_dims(1), out=logits_BS)
            mx.nd.exp(logits_BS, out=logits_BS)
            return mx.nd.sum(logits_BS, axis=1)
        sums = []
        for part in _parts(logits_BS.shape[0]):
            values, slopes = _ruled(logits_BS[part], part, rules)
            values = mx.nd.exp(mx.nd.broadcast_sub(values, shift_B[part].expand_dims(1)))
            sums.append(mx.nd.sum(values, axis=1))
            logits_BS[part] = values * slopes
        return mx.nd.concat(*sums, dim=0)

    @override
    def get_columns(self, matrix_BS: Any, columns_B: Int64Array) -> Any:
        return mx.nd.gather_nd(matrix_BS, self._entries(columns_B))

    @override
    def set_columns(self, matrix_BS: Any, columns_B: Int64Array, values_B: Any) -> None:
        _set_entries(matrix_BS, self._entries(columns_B), values_B)

    def _entries(self, columns_B: Int64Array) -> Any:
        indices = np.stack([np.arange(columns_B.size), columns_B])
        return mx.nd.array(indices, ctx=self._context, dtype="int32")

    @override
    def export(self) -> dict[str, NDArray[Any]]:
        return {
            name: np.concatenate([block.asnumpy() for block in blocks])
            for name, blocks in self._arrays.items()
        }

    @override
    def snapshot(self) -> dict[str, NDArray[Any]]:
        return self.export()

    @override
    def load(self, name: str, first: int, values: NDArray[Any]) -> None:
        for number, block in enumerate(self._arrays[name]):
            start = number * self._height
            begin, end = max(first, start), min(first + len(values), start + len(block))
            if begin < end:
                block[begin - start : end - start] = values[begin - first : end - first]

    @override
    def normalize(self, features_bD: Any) -> tuple[Any, Any]:
        norms_b1 = mx.nd.norm(features_bD, axis=1, keepdims=True)
        inverse_norms_b1 = 1.0 / mx.nd.maximum(norms_b1, SMALLEST_NORM)
        return features_bD * inverse_norms_b1, inverse_norms_b1

    @override
    def multiply_rows(self, matrix_BD: Any, factors_B1: Any) -> Any:
        return matrix_BD * factors_B1

    @override
    def project(self, gradient_bD: Any, units_bD: Any, inverse_norms_b1: Any) -> Any:
        radial_b1 = mx.nd.sum(gradient_bD * units_bD, axis=1, keepdims=True)
        return (gradient_bD - radial_b1 * units_bD) * inverse_norms_b1


def _parts(batch: int) -> list[slice]:
    height = -(-batch // _PARTS)
    return [slice(start, min(start + height, batch)) for start in range(0, batch, height)]


def _ruled(logits: Any, part: slice, rules: Negatives) -> tuple[Any, Any]:
    """The logits of some samples after the rules, and the derivatives."""
    thresholds = rules.thresholds_B[part].expand_dims(1)
    hardness = rules.hardness.reshape((1, 1))
    hard = mx.nd.broadcast_greater(logits, thresholds)
    harder = logits * mx.nd.broadcast_add(logits / rules.scale, hardness)
    values = mx.nd.where(hard, harder, logits)
    slopes = mx.nd.broadcast_add(2.0 / rules.scale * logits, hardness)
    slopes = mx.nd.where(hard, slopes, mx.nd.ones_like(logits))
    left_out = mx.nd.full((1,), LEFT_OUT, ctx=logits.context).broadcast_like(logits)
    return mx.nd.where(logits > rules.limit, left_out, values), slopes


def _set_entries(array: Any, indices: Any, values: Any) -> None:
    """Replace the entries at ``indices`` in place; the operator behind ``array[...] = values``."""
    invoke("_scatter_set_nd", [array, values, indices], {"shape": array.shape}, [array])
