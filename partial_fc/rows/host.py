"""Rows and logits in the host's memory, with Numba kernels.

Shapes: see ``partial_fc.rows.interface``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from partial_fc.bfloat16 import narrowed, widened
from partial_fc.initial import zeros
from partial_fc.optimizers import RowGradients, RowOptimizer
from partial_fc.rows.interface import (
    LEFT_OUT,
    LOWEST,
    NEVER,
    SMALLEST_NORM,
    Array,
    Logits,
    Negatives,
    Placed,
    Rows,
)
from partial_fc.shard import Int64Array, Sample
from runtime.kernels import (
    LANES,
    inlined,
    new_lanes,
    parallel_kernel,
    prange,
    prefetch,
    product_of,
    sum_of,
)
from runtime.mxnet import mx
from runtime.ndarray import array_of, queue, settle


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
        self._order = mx.nd.empty(1)

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
        inverse_norms_K = mx.nd.empty(rows.size)
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
        targets_B = mx.nd.empty(logits.batch)
        entries = _entries(logits, placed.entries)
        queue(_take_entries, logits.numbers, entries, targets_B, writes=[targets_B])
        return targets_B

    @override
    def exponentiate(
        self, logits: Logits, placed: Placed, targets_B: Any, rules: Negatives
    ) -> tuple[Any, Any]:
        outputs = mx.nd.empty(logits.batch), mx.nd.empty(logits.batch)
        targets = _entries(logits, placed.entries), placed.local_B, targets_B
        # The first column of each block, and S.
        bounds = np.append(np.arange(0, logits.num_rows, logits.height), logits.num_rows)
        arguments = logits.numbers, bounds, targets, *outputs, _numbers_of(rules, logits.batch)
        queue(_exponentiate, *arguments, writes=[logits.numbers, *outputs])
        return outputs

    @override
    def set_targets(self, logits: Logits, placed: Placed, values_B: Any) -> None:
        entries = _entries(logits, placed.entries)
        arguments = logits.numbers, entries, placed.local_B, values_B
        queue(_put_entries, *arguments, writes=[logits.numbers])

    @override
    def project(self, gradient_bD: Any, units_bD: Any, inverse_norms_b1: Any) -> Any:
        # MXNet's operators take five times as long on a CPU, most of it for the sums.
        projected_bD = mx.nd.empty(gradient_bD.shape)
        arguments = gradient_bD, units_bD, inverse_norms_b1, projected_bD
        queue(_project, *arguments, writes=[projected_bD])
        return projected_bD

    @override
    def export(self) -> dict[str, NDArray[Any]]:
        self.settle()
        return dict(self._arrays)

    @override
    def snapshot(self) -> dict[str, NDArray[Any]]:
        # Into the same memory each time: new pages from the system take longer to get than to
        # fill, on a virtual machine ten times as long.
        for name, array in self.export().items():
            np.copyto(self._copies.setdefault(name, np.empty_like(array)), array)
        return dict(self._copies)

    @override
    def load(self, name: str, first: int, values: NDArray[Any]) -> None:
        self.settle()
        self._arrays[name][first : first + len(values)] = values


@parallel_kernel
def _normalize(centers, rows, units, inverse_norms):  # type: ignore[no-untyped-def]
    for s in prange(rows.size):
        prefetch(centers, rows[min(s + 2, rows.size - 1)], 0, centers.shape[1])
        center, unit = centers[rows[s]], units[s]
        norm = np.sqrt(product_of(center, center))
        inverse = np.float32(1.0) / max(norm, np.float32(SMALLEST_NORM))
        inverse_norms[s] = inverse
        for d in range(center.size):
            unit[d] = narrowed(center[d] * inverse, unit)


@parallel_kernel
def _project(gradient, units, inverse_norms, projected):  # type: ignore[no-untyped-def]
    for b in prange(gradient.shape[0]):
        slope, unit = gradient[b], units[b]
        radial = product_of(slope, unit)
        for d in range(slope.size):
            projected[b, d] = (slope[d] - radial * unit[d]) * inverse_norms[b, 0]


def _entries(logits: Logits, columns_B: Int64Array) -> Int64Array:
    """Return the index of a column of each sample among the numbers, int64 [B]."""
    starts_B = columns_B // logits.height * logits.height
    widths_B = np.minimum(logits.height, logits.num_rows - starts_B)
    samples_B = np.arange(logits.batch)
    entries_B: Int64Array = logits.batch * starts_B + samples_B * widths_B + columns_B - starts_B
    return entries_B


def _numbers_of(rules: Negatives, batch: int) -> tuple[np.float32, Any, Any, np.float32]:
    """The limit, thresholds [B], hardness [1] and inverse scale of the kernel."""
    thresholds_B, hardness = np.full(batch, NEVER, np.float32), np.zeros(1, np.float32)
    if rules.curriculum is not None:
        thresholds_B, hardness = rules.curriculum
        thresholds_B = thresholds_B * rules.scale
    return np.float32(rules.limit), thresholds_B, hardness, np.float32(1.0 / rules.scale)


def _take_entries(numbers: NDArray[Any], entries_B: Int64Array, values_B: Array) -> None:
    """Read entries."""
    values_B[:] = widened(numbers[entries_B])


def _put_entries(
    numbers: NDArray[Any], entries_B: Int64Array, local_B: Array, values_B: Array
) -> None:
    """Replace entries where the target belongs to this rank."""
    own = np.flatnonzero(local_B)
    numbers[entries_B[own]] = narrowed(values_B[own], numbers)


@inlined
def _columns(numbers, bounds, block, b, batch):  # type: ignore[no-untyped-def]
    """The logits of a sample in a block."""
    width = bounds[block + 1] - bounds[block]
    start = batch * bounds[block] + b * width
    return numbers[start : start + width]


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


@inlined
def _ruled(logit, rule):  # type: ignore[no-untyped-def]
    """A logit after the rules of its sample."""
    limit, threshold, hardness, inverse_scale = rule
    value = logit * (hardness + logit * inverse_scale) if logit > threshold else logit
    return np.float32(LEFT_OUT) if logit > limit else value


@inlined
def _slope(logit, rule):  # type: ignore[no-untyped-def]
    """The derivative of a ruled logit."""
    _, threshold, hardness, inverse_scale = rule
    slope = hardness + np.float32(2.0) * logit * inverse_scale
    return slope if logit > threshold else np.float32(1.0)


@inlined
def _largest(row, rule, least, lanes):  # type: ignore[no-untyped-def]
    """The largest of the logits of a row after the rule and of ``least``; changes the lanes."""
    lanes[:] = least
    whole = row.size // LANES * LANES
    for s in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] = max(lanes[lane], _ruled(widened(row[s + lane]), rule))
    for s in range(whole, row.size):
        lanes[0] = max(lanes[0], _ruled(widened(row[s]), rule))
    for lane in range(LANES):
        least = max(least, lanes[lane])
    return least


@parallel_kernel
def _exponentiate(numbers, bounds, targets, shift, sums, rules):  # type: ignore[no-untyped-def]
    """See ``Rows.exponentiate``; ``targets``: their entries, whether they are local, and logits."""
    entries, local, target_logits = targets
    limit, thresholds, hardness, inverse_scale = rules
    for b in prange(sums.size):
        lanes = new_lanes()
        rule = limit, thresholds[b], hardness[0], inverse_scale
        shift[b], sums[b] = np.float32(LOWEST), np.float32(0.0)
        if local[b]:
            numbers[entries[b]] = narrowed(np.float32(LEFT_OUT), numbers)
            shift[b] = target_logits[b]
        for block in range(bounds.size - 1):
            row = _columns(numbers, bounds, block, b, sums.size)
            shift[b] = _largest(row, rule, shift[b], lanes)
        largest = shift[b]
        for block in range(bounds.size - 1):
            row = _columns(numbers, bounds, block, b, sums.size)
            lanes[:] = np.float32(0.0)
            whole = row.size // LANES * LANES
            for s in range(0, whole, LANES):
                for lane in range(LANES):
                    logit = widened(row[s + lane])
                    value = _exp(_ruled(logit, rule) - largest)
                    row[s + lane] = narrowed(value * _slope(logit, rule), row)
                    lanes[lane] += value
            total = sum_of(lanes)
            for s in range(whole, row.size):
                logit = widened(row[s])
                value = _exp(_ruled(logit, rule) - largest)
                row[s] = narrowed(value * _slope(logit, rule), row)
                total += value
            sums[b] += total
