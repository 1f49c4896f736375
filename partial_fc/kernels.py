"""The passes of the head over whole rows: gather, normalize, exponentiate, update.

The head is a few matrix products and memory traffic around them, so each pass reads and writes a
row once. Two implementations with the same interface: ``HostRows`` keeps the centers in NumPy
arrays and works on the memory of MXNet's arrays with Numba kernels; ``DeviceRows`` keeps them on a
device and uses MXNet operators. In both only the sampled rows enter a tensor of MXNet, whose
32-bit sizes end at 2^31 elements, so a shard may have any size.

Shapes: B global batch, D embedding, S sampled rows, C rows of the shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from runtime.mxnet import mx
from runtime.ndarray import invoke, memory

Array = NDArray[np.float32]
Int64Array = NDArray[np.int64]

_SMALLEST_NORM = 1e-12
_MAX_ELEMENTS = 2**31 - 1


@dataclass(frozen=True)
class SGD:
    """One step of lazy momentum SGD: only sampled rows decay, move and keep momentum."""

    lr: float
    momentum: float
    weight_decay: float


class Rows(Protocol):
    """The class centers of a shard with their momenta, and the passes over logits beside them."""

    def gather(self, rows: Int64Array, normalized_SD: Any) -> Any:
        """Write the unit vectors of ``rows`` [S] into ``normalized_SD``; returns 1 / norms [S]."""

    def update(
        self,
        rows: Int64Array,
        normalized_SD: Any,
        inverse_norms_S: Any,
        gradient_SD: Any,
        step: SGD,
    ) -> None:
        """Update ``rows`` by the gradient with respect to their unit vectors."""

    def maxima(self, logits_BS: Any) -> Any:
        """The largest logit of each sample, NDArray [B]."""

    def exponentiate(self, logits_BS: Any, shift_B: Any) -> Any:
        """Replace the logits by exp(logit − shift), in place; returns the sums, NDArray [B]."""

    def get_columns(self, matrix_BS: Any, columns_B: Int64Array) -> Any:
        """One entry of each row, NDArray [B]."""

    def set_columns(self, matrix_BS: Any, columns_B: Int64Array, values_B: Any) -> None:
        """Replace one entry of each row, in place."""

    def export(self) -> tuple[Array, Array]:
        """The centers and their momenta, float32 [C, D] on the host."""


class HostRows:
    """Rows in the host's memory, with Numba kernels."""

    def __init__(self, centers_CD: Array) -> None:
        """Takes over ``centers_CD`` (float32 [C, D], contiguous) and updates it in place."""
        assert centers_CD.dtype == np.float32 and centers_CD.flags.c_contiguous
        self.centers = centers_CD
        self.momenta = np.zeros_like(centers_CD)

    def gather(self, rows: Int64Array, normalized_SD: Any) -> Array:
        """See ``Rows.gather``."""
        inverse_norms_S = np.empty(rows.size, dtype=np.float32)
        _gather_normalize(self.centers, rows, memory(normalized_SD), inverse_norms_S)
        return inverse_norms_S

    def update(
        self,
        rows: Int64Array,
        normalized_SD: Any,
        inverse_norms_S: Array,
        gradient_SD: Any,
        step: SGD,
    ) -> None:
        """See ``Rows.update``."""
        _project_update(
            self.centers,
            self.momenta,
            rows,
            memory(normalized_SD),
            inverse_norms_S,
            memory(gradient_SD),
            np.float32(step.lr),
            np.float32(step.momentum),
            np.float32(step.weight_decay),
        )

    def maxima(self, logits_BS: Any) -> Any:
        """See ``Rows.maxima``."""
        maxima_B = mx.nd.empty((logits_BS.shape[0],))
        _row_maxima(memory(logits_BS), memory(maxima_B))
        return maxima_B

    def exponentiate(self, logits_BS: Any, shift_B: Any) -> Any:
        """See ``Rows.exponentiate``."""
        sums_B = mx.nd.empty((logits_BS.shape[0],))
        _row_exponentials(memory(logits_BS), memory(shift_B), memory(sums_B))
        return sums_B

    def get_columns(self, matrix_BS: Any, columns_B: Int64Array) -> Any:
        """See ``Rows.get_columns``."""
        return mx.nd.array(memory(matrix_BS)[np.arange(columns_B.size), columns_B])

    def set_columns(self, matrix_BS: Any, columns_B: Int64Array, values_B: Any) -> None:
        """See ``Rows.set_columns``."""
        memory(matrix_BS)[np.arange(columns_B.size), columns_B] = memory(values_B)

    def export(self) -> tuple[Array, Array]:
        """See ``Rows.export``."""
        return self.centers, self.momenta


# Reductions may be reordered and products fused, so that they vectorise; infinities and NaN keep
# their meaning, because a diverged run has to show itself.
_FAST = {"reassoc", "contract", "arcp", "nsz"}


@numba.njit(parallel=True, fastmath=_FAST, cache=True)
def _gather_normalize(centers, rows, normalized, inverse_norms):  # type: ignore[no-untyped-def]
    for s in numba.prange(rows.size):
        center = centers[rows[s]]
        squares = np.float32(0.0)
        for d in range(center.size):
            squares += center[d] * center[d]
        inverse = np.float32(1.0) / max(np.sqrt(squares), np.float32(_SMALLEST_NORM))
        inverse_norms[s] = inverse
        for d in range(center.size):
            normalized[s, d] = center[d] * inverse


@numba.njit(parallel=True, fastmath=_FAST, cache=True)
def _project_update(  # type: ignore[no-untyped-def]
    centers, momenta, rows, normalized, inverse_norms, gradient, lr, momentum, weight_decay
):
    for s in numba.prange(rows.size):
        center = centers[rows[s]]
        velocity = momenta[rows[s]]
        unit = normalized[s]
        slope = gradient[s]
        radial = np.float32(0.0)
        for d in range(center.size):
            radial += slope[d] * unit[d]
        inverse = inverse_norms[s]
        for d in range(center.size):
            step = inverse * (slope[d] - radial * unit[d]) + weight_decay * center[d]
            velocity[d] = momentum * velocity[d] - lr * step
            center[d] += velocity[d]


@numba.njit(parallel=True, fastmath=_FAST, cache=True)
def _row_maxima(logits, maxima):  # type: ignore[no-untyped-def]
    for b in numba.prange(logits.shape[0]):
        row = logits[b]
        # Sixteen running maxima: one alone would be a chain that cannot vectorise.
        lanes = np.full(16, -np.inf, dtype=np.float32)
        whole = row.size // 16 * 16
        for s in range(0, whole, 16):
            for lane in range(16):
                lanes[lane] = max(lanes[lane], row[s + lane])
        largest = lanes[0]
        for lane in range(1, 16):
            largest = max(largest, lanes[lane])
        for s in range(whole, row.size):
            largest = max(largest, row[s])
        maxima[b] = largest


@numba.njit(fastmath=_FAST, inline="always", cache=True)
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


@numba.njit(parallel=True, fastmath=_FAST, cache=True)
def _row_exponentials(logits, shift, sums):  # type: ignore[no-untyped-def]
    for b in numba.prange(logits.shape[0]):
        row = logits[b]
        largest = shift[b]
        total = np.float32(0.0)
        for s in range(row.size):
            value = _exp(row[s] - largest)
            row[s] = value
            total += value
        sums[b] = total


class DeviceRows:
    """Rows in a device's memory, with MXNet operators; cut into tensors below 2^31 elements."""

    def __init__(self, centers_CD: Array, context: Any, max_elements: int = _MAX_ELEMENTS) -> None:
        """Copies ``centers_CD`` (float32 [C, D]) to the device."""
        self._height = max(1, max_elements // centers_CD.shape[1])
        self._context = context
        starts = range(0, centers_CD.shape[0], self._height)
        self._centers = [
            mx.nd.array(centers_CD[start : start + self._height], ctx=context) for start in starts
        ]
        self._momenta = [mx.nd.zeros_like(block) for block in self._centers]

    def _cut(self, rows: Int64Array) -> Iterator[tuple[int, slice, Any]]:
        """The blocks that sorted ``rows`` touch: block number, part of ``rows``, rows in it."""
        bounds = np.searchsorted(rows, self._height * np.arange(len(self._centers) + 1))
        for block in np.flatnonzero(np.diff(bounds)):
            part = slice(int(bounds[block]), int(bounds[block + 1]))
            inside = rows[part] - block * self._height
            yield int(block), part, mx.nd.array(inside, ctx=self._context, dtype="int32")

    def gather(self, rows: Int64Array, normalized_SD: Any) -> Any:
        """See ``Rows.gather``."""
        for block, part, inside in self._cut(rows):
            normalized_SD[part] = mx.nd.take(self._centers[block], inside)
        norms_S = mx.nd.norm(normalized_SD, axis=1)
        inverse_norms_S = 1.0 / mx.nd.maximum(norms_S, _SMALLEST_NORM)
        mx.nd.broadcast_mul(normalized_SD, inverse_norms_S.expand_dims(1), out=normalized_SD)
        return inverse_norms_S

    def update(
        self,
        rows: Int64Array,
        normalized_SD: Any,
        inverse_norms_S: Any,
        gradient_SD: Any,
        step: SGD,
    ) -> None:
        """See ``Rows.update``."""
        radial_S = mx.nd.sum(gradient_SD * normalized_SD, axis=1, keepdims=True)
        tangent_SD = gradient_SD - mx.nd.broadcast_mul(radial_S, normalized_SD)
        tangent_SD = mx.nd.broadcast_mul(tangent_SD, inverse_norms_S.expand_dims(1))
        for block, part, inside in self._cut(rows):
            centers = mx.nd.take(self._centers[block], inside)
            momenta = mx.nd.take(self._momenta[block], inside)
            mx.nd.sgd_mom_update(
                centers,
                tangent_SD[part],
                momenta,
                lr=step.lr,
                momentum=step.momentum,
                wd=step.weight_decay,
                out=centers,
            )
            _scatter(self._centers[block], inside, centers)
            _scatter(self._momenta[block], inside, momenta)

    def maxima(self, logits_BS: Any) -> Any:
        """See ``Rows.maxima``."""
        return mx.nd.max(logits_BS, axis=1)

    def exponentiate(self, logits_BS: Any, shift_B: Any) -> Any:
        """See ``Rows.exponentiate``."""
        mx.nd.broadcast_sub(logits_BS, shift_B.expand_dims(1), out=logits_BS)
        mx.nd.exp(logits_BS, out=logits_BS)
        return mx.nd.sum(logits_BS, axis=1)

    def get_columns(self, matrix_BS: Any, columns_B: Int64Array) -> Any:
        """See ``Rows.get_columns``."""
        return mx.nd.gather_nd(matrix_BS, self._entries(columns_B))

    def set_columns(self, matrix_BS: Any, columns_B: Int64Array, values_B: Any) -> None:
        """See ``Rows.set_columns``."""
        _set_entries(matrix_BS, self._entries(columns_B), values_B)

    def _entries(self, columns_B: Int64Array) -> Any:
        indices = np.stack([np.arange(columns_B.size), columns_B])
        return mx.nd.array(indices, ctx=self._context, dtype="int32")

    def export(self) -> tuple[Array, Array]:
        """See ``Rows.export``."""
        centers = np.concatenate([block.asnumpy() for block in self._centers])
        momenta = np.concatenate([block.asnumpy() for block in self._momenta])
        return centers, momenta


def _scatter(table: Any, rows: Any, values: Any) -> None:
    _set_entries(table, rows.expand_dims(0), values)


def _set_entries(array: Any, indices: Any, values: Any) -> None:
    """Replace the entries at ``indices`` in place; the operator behind ``array[...] = values``."""
    invoke("_scatter_set_nd", [array, values, indices], {"shape": array.shape}, [array])
