"""The passes of the head over whole rows: gather and normalize, exponentiate, update.

The head is a few matrix products and memory traffic around them, so each pass reads and writes a
row once. Two implementations with the same interface: ``HostRows`` keeps the centers in NumPy
arrays and works on the memory of MXNet's arrays with Numba kernels; ``DeviceRows`` keeps them on a
device and uses MXNet operators. In both only the sampled rows enter a tensor of MXNet, whose
32-bit sizes end at 2^31 elements, so a shard may have any size.

Shapes: B global batch, D embedding, S sampled rows, C rows of the shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional, Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from partial_fc import bfloat16
from partial_fc.bfloat16 import narrowed, widened
from partial_fc.negatives import LEFT_OUT, Negatives
from partial_fc.optimizers import RowGradients, RowOptimizer
from partial_fc.vectors import SMALLEST_NORM, DeviceVectors, HostVectors, Vectors
from runtime.compiled import inlined, parallel_kernel
from runtime.mxnet import mx
from runtime.ndarray import invoke, memory

Array = NDArray[np.float32]
Int64Array = NDArray[np.int64]

_MAX_ELEMENTS = 2**31 - 1
# The rules for negatives need temporary arrays on a device: of this part of the logits at a time.
_PARTS = 16


class Rows(Vectors, Protocol):
    """The class centers of a shard with their optimizer, and the passes over logits beside them."""

    @property
    def row_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one row of "centers" and each state."""

    def gather(self, rows: Int64Array, normalized_SD: Any) -> Any:
        """Write the unit vectors of ``rows`` [S] into ``normalized_SD``; returns 1 / norms [S]."""

    def update(self, rows: Int64Array, inverse_norms_S: Any, gradient_SD: Any, lr: float) -> None:
        """Update ``rows`` by the gradient with respect to their unit vectors."""

    def maxima(self, logits_BS: Any, negatives: Optional[Negatives] = None) -> Any:
        """The largest logit of each sample under the rules ``negatives``, NDArray [B]."""

    def exponentiate(
        self, logits_BS: Any, shift_B: Any, negatives: Optional[Negatives] = None
    ) -> Any:
        """Replace the logits by exp(logit − shift), in place; returns the sums, NDArray [B].

        Where ``negatives`` turns a logit x into another one f(x), exp(f(x) − shift) is summed and
        replaces it times f'(x), the weight that it has in the gradient.
        """

    def get_columns(self, matrix_BS: Any, columns_B: Int64Array) -> Any:
        """One entry of each row, NDArray [B]."""

    def set_columns(self, matrix_BS: Any, columns_B: Int64Array, values_B: Any) -> None:
        """Replace one entry of each row, in place."""

    def export(self) -> dict[str, NDArray[Any]]:
        """Everything kept by row, on the host: "centers" float32 [C, D] and the states [C, …].

        The states are those of ``partial_fc.states.STATES``. The arrays may be the ones that the
        next update changes.
        """

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """As ``export``, in arrays that no update changes; the next snapshot may."""

    def load(self, name: str, first: int, values: NDArray[Any]) -> None:
        """Overwrite the rows from ``first`` on of "centers" or a state."""


class HostRows(HostVectors):
    """Rows in the host's memory, with Numba kernels."""

    def __init__(self, centers_CD: Array, optimizer: RowOptimizer) -> None:
        """Takes over ``centers_CD`` (float32 [C, D], contiguous) and updates it in place."""
        assert centers_CD.dtype == np.float32 and centers_CD.flags.c_contiguous
        self._optimizer = optimizer
        self._arrays: dict[str, NDArray[Any]] = {"centers": centers_CD}
        for name, state in optimizer.states.items():
            self._arrays[name] = np.zeros(state.shape(*centers_CD.shape), dtype=state.dtype)
        self._copies: dict[str, NDArray[Any]] = {}

    @property
    def row_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``Rows.row_shapes``."""
        return {name: array.shape[1:] for name, array in self._arrays.items()}

    def gather(self, rows: Int64Array, normalized_SD: Any) -> Array:
        """See ``Rows.gather``."""
        inverse_norms_S = np.empty(rows.size, dtype=np.float32)
        _gather_normalize(self._arrays["centers"], rows, memory(normalized_SD), inverse_norms_S)
        return inverse_norms_S

    def update(self, rows: Int64Array, inverse_norms_S: Array, gradient_SD: Any, lr: float) -> None:
        """See ``Rows.update``."""
        gradients = RowGradients(rows, inverse_norms_S, memory(gradient_SD))
        self._optimizer.update_host(self._arrays, gradients, lr)

    def maxima(self, logits_BS: Any, negatives: Optional[Negatives] = None) -> Any:
        """See ``Rows.maxima``."""
        maxima_B = mx.nd.empty((logits_BS.shape[0],))
        if negatives is None:
            _row_maxima(memory(logits_BS), memory(maxima_B))
        else:
            _ruled_maxima(memory(logits_BS), memory(maxima_B), *_numbers(negatives))
        return maxima_B

    def exponentiate(
        self, logits_BS: Any, shift_B: Any, negatives: Optional[Negatives] = None
    ) -> Any:
        """See ``Rows.exponentiate``."""
        sums_B = mx.nd.empty((logits_BS.shape[0],))
        arrays = memory(logits_BS), memory(shift_B), memory(sums_B)
        if negatives is None:
            _row_exponentials(*arrays)
        else:
            _ruled_exponentials(*arrays, *_numbers(negatives))
        return sums_B

    def get_columns(self, matrix_BS: Any, columns_B: Int64Array) -> Any:
        """See ``Rows.get_columns``."""
        entries = memory(matrix_BS)[np.arange(columns_B.size), columns_B]
        return mx.nd.array(bfloat16.to_float32(entries))

    def set_columns(self, matrix_BS: Any, columns_B: Int64Array, values_B: Any) -> None:
        """See ``Rows.set_columns``."""
        matrix = memory(matrix_BS)
        entries = bfloat16.like(matrix, memory(values_B))
        matrix[np.arange(columns_B.size), columns_B] = entries

    def export(self) -> dict[str, NDArray[Any]]:
        """See ``Rows.export``."""
        return dict(self._arrays)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """See ``Rows.snapshot``."""
        # Always into the same memory: to get new pages from the system takes longer than to fill
        # them, on a virtual machine ten times as long.
        if not self._copies:
            self._copies = {name: np.empty_like(array) for name, array in self._arrays.items()}
        for name, array in self._arrays.items():
            np.copyto(self._copies[name], array)
        return dict(self._copies)

    def load(self, name: str, first: int, values: NDArray[Any]) -> None:
        """See ``Rows.load``."""
        self._arrays[name][first : first + len(values)] = values


@parallel_kernel
def _gather_normalize(centers, rows, normalized, inverse_norms):  # type: ignore[no-untyped-def]
    for s in numba.prange(rows.size):
        center = centers[rows[s]]
        squares = np.float32(0.0)
        for d in range(center.size):
            squares += center[d] * center[d]
        inverse = np.float32(1.0) / max(np.sqrt(squares), np.float32(SMALLEST_NORM))
        inverse_norms[s] = inverse
        for d in range(center.size):
            normalized[s, d] = narrowed(center[d] * inverse, normalized)


@parallel_kernel
def _row_maxima(logits, maxima):  # type: ignore[no-untyped-def]
    for b in numba.prange(logits.shape[0]):
        row = logits[b]
        # Sixteen running maxima: one alone would be a chain that cannot vectorize.
        lanes = np.full(16, -np.inf, dtype=np.float32)
        whole = row.size // 16 * 16
        for s in range(0, whole, 16):
            for lane in range(16):
                lanes[lane] = max(lanes[lane], widened(row[s + lane]))
        largest = lanes[0]
        for lane in range(1, 16):
            largest = max(largest, lanes[lane])
        for s in range(whole, row.size):
            largest = max(largest, widened(row[s]))
        maxima[b] = largest


@inlined
def _exp(x):  # type: ignore[no-untyped-def]
    """exp(x) for x <= 0, to 2e-7; below -87 exactly 0, for denormals would slow the products."""
    scaled = x * np.float32(1.4426950408889634)
    power = np.floor(scaled + np.float32(0.5))
    rest = x - power * np.float32(0.6931471805599453)
    series = np.float32(1.0 / 720.0)
    series = series * rest + np.float32(1.0 / 120.0)
    series = series * rest + np.float32(1.0 / 24.0)
    series = series * rest + np.float32(1.0 / 6.0)
    series = series * rest + np.float32(0.5)
    series = series * rest + np.float32(1.0)
    series = series * rest + np.float32(1.0)
    bits = np.int32((np.int32(max(power, np.float32(-126.0))) + np.int32(127)) << np.int32(23))
    value = series * bits.view(np.float32)
    return np.float32(0.0) if x < np.float32(-87.0) else value


@parallel_kernel
def _row_exponentials(logits, shift, sums):  # type: ignore[no-untyped-def]
    for b in numba.prange(logits.shape[0]):
        row = logits[b]
        largest = shift[b]
        total = np.float32(0.0)
        for s in range(row.size):
            value = _exp(widened(row[s]) - largest)
            row[s] = narrowed(value, row)
            total += value
        sums[b] = total


def _numbers(negatives: Negatives) -> tuple[np.float32, Array, np.float32, np.float32]:
    return (
        np.float32(negatives.limit),
        memory(negatives.thresholds_B),
        memory(negatives.hardness)[0],
        np.float32(1.0 / negatives.scale),
    )


@inlined
def _ruled(logit, limit, threshold, hardness, inverse_scale):  # type: ignore[no-untyped-def]
    value = logit * (hardness + logit * inverse_scale) if logit > threshold else logit
    return np.float32(LEFT_OUT) if logit > limit else value


@parallel_kernel
def _ruled_maxima(  # type: ignore[no-untyped-def]
    logits, maxima, limit, thresholds, hardness, inverse_scale
):
    for b in numba.prange(logits.shape[0]):
        row = logits[b]
        threshold = thresholds[b]
        lanes = np.full(16, -np.inf, dtype=np.float32)
        whole = row.size // 16 * 16
        for s in range(0, whole, 16):
            for lane in range(16):
                logit = widened(row[s + lane])
                value = _ruled(logit, limit, threshold, hardness, inverse_scale)
                lanes[lane] = max(lanes[lane], value)
        largest = lanes[0]
        for lane in range(1, 16):
            largest = max(largest, lanes[lane])
        for s in range(whole, row.size):
            logit = widened(row[s])
            largest = max(largest, _ruled(logit, limit, threshold, hardness, inverse_scale))
        maxima[b] = largest


@parallel_kernel
def _ruled_exponentials(  # type: ignore[no-untyped-def]
    logits, shift, sums, limit, thresholds, hardness, inverse_scale
):
    for b in numba.prange(logits.shape[0]):
        row = logits[b]
        largest = shift[b]
        threshold = thresholds[b]
        total = np.float32(0.0)
        for s in range(row.size):
            logit = widened(row[s])
            value = _exp(_ruled(logit, limit, threshold, hardness, inverse_scale) - largest)
            total += value
            slope = hardness + np.float32(2.0) * logit * inverse_scale
            value *= slope if logit > threshold else np.float32(1.0)
            row[s] = narrowed(value, row)
        sums[b] = total


class DeviceRows(DeviceVectors):
    """Rows in a device's memory, with MXNet operators; cut into tensors below 2^31 elements."""

    def __init__(
        self,
        centers_CD: Array,
        optimizer: RowOptimizer,
        context: Any,
        max_elements: int = _MAX_ELEMENTS,
    ) -> None:
        """Copies ``centers_CD`` (float32 [C, D]) to the device."""
        num_rows, embedding_size = centers_CD.shape
        self._optimizer = optimizer
        self._context = context
        self._height = max(1, max_elements // embedding_size)
        blocks = [slice(start, start + self._height) for start in range(0, num_rows, self._height)]
        centers = [mx.nd.array(centers_CD[block], ctx=context) for block in blocks]
        self._arrays = {"centers": centers}
        for name, state in optimizer.states.items():
            self._arrays[name] = [
                mx.nd.zeros(state.shape(*block.shape), ctx=context, dtype=state.dtype)
                for block in centers
            ]

    @property
    def row_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``Rows.row_shapes``."""
        return {name: blocks[0].shape[1:] for name, blocks in self._arrays.items()}

    def _cut(self, rows: Int64Array) -> Iterator[tuple[int, slice, Any]]:
        """The blocks that sorted ``rows`` touch: block number, part of ``rows``, rows in it."""
        bounds = np.searchsorted(rows, self._height * np.arange(len(self._arrays["centers"]) + 1))
        for block in np.flatnonzero(np.diff(bounds)):
            part = slice(int(bounds[block]), int(bounds[block + 1]))
            inside = rows[part] - block * self._height
            yield int(block), part, mx.nd.array(inside, ctx=self._context, dtype="int32")

    def gather(self, rows: Int64Array, normalized_SD: Any) -> Any:
        """See ``Rows.gather``."""
        for block, part, inside in self._cut(rows):
            normalized_SD[part] = mx.nd.take(self._arrays["centers"][block], inside)
        norms_S = mx.nd.norm(normalized_SD, axis=1)
        inverse_norms_S = 1.0 / mx.nd.maximum(norms_S, SMALLEST_NORM)
        mx.nd.broadcast_mul(normalized_SD, inverse_norms_S.expand_dims(1), out=normalized_SD)
        return inverse_norms_S

    def update(self, rows: Int64Array, inverse_norms_S: Any, gradient_SD: Any, lr: float) -> None:
        """See ``Rows.update``."""
        for block, part, inside in self._cut(rows):
            sampled = {
                name: mx.nd.take(blocks[block], inside) for name, blocks in self._arrays.items()
            }
            inverse_norms_S1 = inverse_norms_S[part].expand_dims(1)
            units_SD = sampled["centers"] * inverse_norms_S1
            tangent_SD = self.project(gradient_SD[part], units_SD, inverse_norms_S1)
            updated = self._optimizer.update_device(sampled, tangent_SD, lr)
            for name, values in updated.items():
                _scatter(self._arrays[name][block], inside, values)

    def maxima(self, logits_BS: Any, negatives: Optional[Negatives] = None) -> Any:
        """See ``Rows.maxima``."""
        if negatives is None:
            return mx.nd.max(logits_BS, axis=1)
        maxima = [
            mx.nd.max(_ruled_tensor(logits_BS[part], part, negatives)[0], axis=1)
            for part in _parts(logits_BS.shape[0])
        ]
        return mx.nd.concat(*maxima, dim=0)

    def exponentiate(
        self, logits_BS: Any, shift_B: Any, negatives: Optional[Negatives] = None
    ) -> Any:
        """See ``Rows.exponentiate``."""
        if negatives is None:
            mx.nd.broadcast_sub(logits_BS, shift_B.expand_dims(1), out=logits_BS)
            mx.nd.exp(logits_BS, out=logits_BS)
            return mx.nd.sum(logits_BS, axis=1)
        sums = []
        for part in _parts(logits_BS.shape[0]):
            values, slopes = _ruled_tensor(logits_BS[part], part, negatives)
            values = mx.nd.exp(mx.nd.broadcast_sub(values, shift_B[part].expand_dims(1)))
            sums.append(mx.nd.sum(values, axis=1))
            logits_BS[part] = values * slopes
        return mx.nd.concat(*sums, dim=0)

    def get_columns(self, matrix_BS: Any, columns_B: Int64Array) -> Any:
        """See ``Rows.get_columns``."""
        return mx.nd.gather_nd(matrix_BS, self._entries(columns_B))

    def set_columns(self, matrix_BS: Any, columns_B: Int64Array, values_B: Any) -> None:
        """See ``Rows.set_columns``."""
        _set_entries(matrix_BS, self._entries(columns_B), values_B)

    def _entries(self, columns_B: Int64Array) -> Any:
        indices = np.stack([np.arange(columns_B.size), columns_B])
        return mx.nd.array(indices, ctx=self._context, dtype="int32")

    def export(self) -> dict[str, NDArray[Any]]:
        """See ``Rows.export``."""
        return {
            name: np.concatenate([block.asnumpy() for block in blocks])
            for name, blocks in self._arrays.items()
        }

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """See ``Rows.snapshot``."""
        return self.export()

    def load(self, name: str, first: int, values: NDArray[Any]) -> None:
        """See ``Rows.load``."""
        for number, block in enumerate(self._arrays[name]):
            start = number * self._height
            begin, end = max(first, start), min(first + len(values), start + len(block))
            if begin < end:
                block[begin - start : end - start] = values[begin - first : end - first]


def _parts(batch: int) -> list[slice]:
    height = -(-batch // _PARTS)
    return [slice(start, min(start + height, batch)) for start in range(0, batch, height)]


def _ruled_tensor(logits: Any, part: slice, negatives: Negatives) -> tuple[Any, Any]:
    """The logits of some samples under the rules, and the derivatives."""
    thresholds = negatives.thresholds_B[part].expand_dims(1)
    hardness = negatives.hardness.reshape((1, 1))
    hard = mx.nd.broadcast_greater(logits, thresholds)
    values = mx.nd.where(
        hard, logits * mx.nd.broadcast_add(logits / negatives.scale, hardness), logits
    )
    slopes = mx.nd.broadcast_add(2.0 / negatives.scale * logits, hardness)
    slopes = mx.nd.where(hard, slopes, mx.nd.ones_like(logits))
    left_out = mx.nd.full((1,), LEFT_OUT, ctx=logits.context).broadcast_like(logits)
    return mx.nd.where(logits > negatives.limit, left_out, values), slopes


def _scatter(table: Any, rows: Any, values: Any) -> None:
    _set_entries(table, rows.expand_dims(0), values)


def _set_entries(array: Any, indices: Any, values: Any) -> None:
    """Replace the entries at ``indices`` in place; the operator behind ``array[...] = values``."""
    invoke("_scatter_set_nd", [array, values, indices], {"shape": array.shape}, [array])
