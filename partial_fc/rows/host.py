"""Rows in the host's memory, with Numba kernels.

The small passes over features are kernels, too: on a CPU MXNet's broadcasting operators take some
3 ms each for 256 × 512 numbers, and the six of a step a tenth of its time.

Shapes: see ``partial_fc.rows.interface``.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from partial_fc import bfloat16
from partial_fc.bfloat16 import narrowed, widened
from partial_fc.negatives import LEFT_OUT, NEVER, Negatives
from partial_fc.optimizers import Draws, RowGradients, RowOptimizer
from partial_fc.row_memory import zeros
from partial_fc.rows.interface import SMALLEST_NORM, Array, Logits, Placed, Rows
from partial_fc.shard import Int64Array, Sample
from runtime.engine import settle
from runtime.kernels.compiled import inlined, overload, parallel_kernel, prange, types
from runtime.kernels.memory import (
    LINE_FLOATS,
    PART,
    end_of_writes,
    multiply_line,
    prefetch_part,
)
from runtime.kernels.sums import LANES, product_of, sum_of
from runtime.ndarray import array_of, new_array, queue


class _Gathered(NamedTuple):
    """A block of rows between ``gather`` and ``update``.

    Which, 1 / their norms, the gradient, and the number of the update.
    """

    rows: Int64Array
    inverse_norms_K: Any
    gradient_KD: Any
    update: int


class HostRows(Rows):
    """Rows of NumPy arrays.

    The kernels are queued on MXNet's engine among the operators of the step, and nothing is waited
    for before the rows are looked at.
    """

    def __init__(
        self,
        centers_CD: NDArray[Any],
        optimizer: RowOptimizer,
        *,
        seed: int = 0,
        first_class: int = 0,
    ) -> None:
        """Take over the centers and update them in place.

        Args:
            centers_CD: [C, D], contiguous, float32, or uint16 that holds bfloat16: then the states
                that are as wide are of this type, too, and updates are rounded at random.
            optimizer: of the centers.
            seed: of the random rounding.
            first_class: the class of row 0; a class is rounded alike on any number of ranks.
        """
        assert centers_CD.dtype in (np.float32, np.uint16) and centers_CD.flags.c_contiguous
        self._optimizer = optimizer
        self._seed, self._first = seed, np.int64(first_class)
        self._arrays: dict[str, NDArray[Any]] = {"centers": centers_CD}
        for name, state in optimizer.states.items():
            dtype = centers_CD.dtype if state.wide else state.dtype
            self._arrays[name] = zeros(state.shape(*centers_CD.shape), dtype)
        # The state whose numbers have the lower bits of the centers, if they are bfloat16.
        self._carrier = next(name for name, state in optimizer.states.items() if state.wide)
        self._copies: dict[str, NDArray[Any]] = {}
        # Stands for the rows where the engine orders what reads and what writes them.
        self._order = new_array(1)

    @property
    @override
    def row_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape[1:] for name, array in self._arrays.items()}

    @override
    def place(self, sample: Sample) -> Placed:
        return Placed(sample.rows, sample.targets, array_of(sample.local), sample.update)

    @override
    def gather(self, placed: Placed, part: slice, units_KD: Any, gradient_KD: Any) -> _Gathered:
        rows = placed.rows[part]
        inverse_norms_K = new_array(rows.size)
        arguments = self._arrays["centers"], rows, units_KD, inverse_norms_K
        queue(_normalize, *arguments, reads=[self._order], writes=[units_KD, inverse_norms_K])
        return _Gathered(rows, inverse_norms_K, gradient_KD, placed.update)

    @override
    def update(self, gathered: _Gathered, lr: float) -> None:
        rows, inverse_norms_K, gradient_KD, update = gathered
        draws = Draws(_key(self._seed, update), self._first)
        gradients = RowGradients(rows, inverse_norms_K, gradient_KD, draws)
        queue(self._optimizer.update_host, self._arrays, gradients, lr, writes=[self._order])

    @override
    def settle(self) -> None:
        settle(self._order)

    @override
    def maxima(self, logits: Logits, rules: Optional[Negatives] = None) -> Any:
        maxima_B = new_array(logits.batch)
        arguments = logits.numbers, _bounds(logits), maxima_B
        if rules is None:
            queue(_row_maxima, *arguments, writes=[maxima_B])
        else:
            queue(_ruled_maxima, *arguments, _numbers(rules, logits.batch), writes=[maxima_B])
        return maxima_B

    @override
    def exponentiate(self, logits: Logits, shift_B: Any, rules: Optional[Negatives] = None) -> Any:
        sums_B = new_array(logits.batch)
        arguments = logits.numbers, _bounds(logits), shift_B, sums_B
        writes = [logits.numbers, sums_B]
        if rules is None:
            queue(_row_exponentials, *arguments, writes=writes)
        else:
            queue(_ruled_exponentials, *arguments, _numbers(rules, logits.batch), writes=writes)
        return sums_B

    @override
    def get_targets(self, logits: Logits, placed: Placed) -> Any:
        targets_B = new_array(logits.batch)
        entries = _entries(logits, placed.entries)
        queue(_take_entries, logits.numbers, entries, targets_B, writes=[targets_B])
        return targets_B

    @override
    def set_targets(self, logits: Logits, placed: Placed, values_B: Any) -> None:
        entries = _entries(logits, placed.entries)
        queue(_put_entries, logits.numbers, entries, values_B, writes=[logits.numbers])

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
        rows = self._arrays[name][first : first + len(values)]
        if {values.dtype, rows.dtype} == {np.dtype(np.float32), np.dtype(np.uint16)}:
            values = _converted(values, carries=name == self._carrier)
        rows[:] = values

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


def _take_entries(numbers: NDArray[Any], entries: Int64Array, values: Array) -> None:
    values[:] = bfloat16.to_float32(numbers[entries])


def _put_entries(numbers: NDArray[Any], entries: Int64Array, values: Array) -> None:
    numbers[entries] = bfloat16.from_float32(values, numbers.dtype)


def _converted(values: NDArray[Any], *, carries: bool) -> NDArray[Any]:
    """Values in the other type: of bfloat16 exactly, but for lower bits, or to the nearest."""
    if values.dtype == np.uint16:
        return (bfloat16.carrier_to_float32 if carries else bfloat16.to_float32)(values)
    if carries:
        return bfloat16.carrier_from_float32(values)
    return bfloat16.from_float32(values, np.dtype(np.uint16))


def _key(seed: int, update: int) -> np.uint32:
    """What the random numbers of an update follow from."""
    key: np.uint32 = np.random.SeedSequence((seed, update)).generate_state(1)[0]
    return key


def _bounds(logits: Logits) -> Int64Array:
    """The first column of each block, and S."""
    return np.append(np.arange(0, logits.num_rows, logits.height), logits.num_rows)


def _entries(logits: Logits, columns_B: Int64Array) -> Int64Array:
    """Where a column of each sample is among the numbers."""
    starts_B = columns_B // logits.height * logits.height
    widths_B = np.minimum(logits.height, logits.num_rows - starts_B)
    samples_B = np.arange(logits.batch)
    entries_B: Int64Array = logits.batch * starts_B + samples_B * widths_B + columns_B - starts_B
    return entries_B


def _write_unit(part: Any, inverse: Any, unit: Any) -> None:
    """In a kernel: write a part of a vector times ``inverse``, float32, into a part of another."""
    raise NotImplementedError("compiled only")


@overload(_write_unit)
def _write_unit_of(part, inverse, unit):  # type: ignore[no-untyped-def]
    def through_caches(part, inverse, unit):  # type: ignore[no-untyped-def]
        for d in range(part.size):
            unit[d] = narrowed(widened(part[d]) * inverse, unit)

    if {part.dtype, unit.dtype} != {types.float32}:
        return through_caches

    def past_caches(part, inverse, unit):  # type: ignore[no-untyped-def]
        source, goal = np.uint64(part.ctypes.data), np.uint64(unit.ctypes.data)
        # All units are more than the caches hold, and to fetch what is overwritten costs as much as
        # to write it.
        if goal % np.uint64(4 * LINE_FLOATS) or part.size % LINE_FLOATS:
            for d in range(part.size):
                unit[d] = part[d] * inverse
        else:
            for d in range(0, part.size, LINE_FLOATS):
                offset = np.uint64(4 * d)
                multiply_line(source + offset, goal + offset, inverse)

    return past_caches


# Rows between which writes past the caches end.
_ROWS = 32


@parallel_kernel
def _normalize(vectors, rows, normalized, inverse_norms):  # type: ignore[no-untyped-def]
    for piece in prange(-(-rows.size // _ROWS)):
        for s in range(piece * _ROWS, min((piece + 1) * _ROWS, rows.size)):
            following = rows[min(s + 2, rows.size - 1)]
            vector = vectors[rows[s]]
            squares = product_of(vector, vector)
            inverse = np.float32(1.0) / max(np.sqrt(squares), np.float32(SMALLEST_NORM))
            inverse_norms[s] = inverse
            for start in range(0, vector.size, PART):
                prefetch_part(vectors, following, start)
                unit = normalized[s, start : start + PART]
                _write_unit(vector[start : start + PART], inverse, unit)
        end_of_writes()


# Samples whose logits a thread passes over together: in a block their memory is one piece.
_SAMPLES = 16


@inlined
def _columns(numbers, bounds, block, b, batch):  # type: ignore[no-untyped-def]
    """The logits of a sample in a block."""
    width = bounds[block + 1] - bounds[block]
    start = batch * bounds[block] + b * width
    return numbers[start : start + width]


@parallel_kernel
def _row_maxima(numbers, bounds, maxima):  # type: ignore[no-untyped-def]
    for piece in prange(-(-maxima.size // _SAMPLES)):
        samples = range(piece * _SAMPLES, min((piece + 1) * _SAMPLES, maxima.size))
        lanes = np.empty(LANES, dtype=np.float32)
        for block in range(bounds.size - 1):
            for b in samples:
                row = _columns(numbers, bounds, block, b, maxima.size)
                lanes[:] = -np.inf
                whole = row.size // LANES * LANES
                for s in range(0, whole, LANES):
                    for lane in range(LANES):
                        lanes[lane] = max(lanes[lane], widened(row[s + lane]))
                largest = maxima[b] if block else np.float32(-np.inf)
                for lane in range(LANES):
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
def _row_exponentials(numbers, bounds, shift, sums):  # type: ignore[no-untyped-def]
    for piece in prange(-(-sums.size // _SAMPLES)):
        samples = range(piece * _SAMPLES, min((piece + 1) * _SAMPLES, sums.size))
        lanes = np.empty(LANES, dtype=np.float32)
        for block in range(bounds.size - 1):
            for b in samples:
                row = _columns(numbers, bounds, block, b, sums.size)
                largest = shift[b]
                lanes[:] = np.float32(0.0)
                whole = row.size // LANES * LANES
                for s in range(0, whole, LANES):
                    for lane in range(LANES):
                        value = _exp(widened(row[s + lane]) - largest)
                        row[s + lane] = narrowed(value, row)
                        lanes[lane] += value
                total = sum_of(lanes)
                for s in range(whole, row.size):
                    value = _exp(widened(row[s]) - largest)
                    row[s] = narrowed(value, row)
                    total += value
                sums[b] = sums[b] + total if block else total


def _numbers(rules: Negatives, batch: int) -> tuple[np.float32, Any, Any, np.float32]:
    """The limit, thresholds [B], hardness [1] and inverse scale of the kernels."""
    limit, inverse_scale = np.float32(rules.limit), np.float32(1.0 / rules.scale)
    if rules.curriculum is None:
        thresholds, hardness = np.full(batch, NEVER, np.float32), np.zeros(1, np.float32)
        return limit, thresholds, hardness, inverse_scale
    return limit, rules.curriculum.thresholds_B, rules.curriculum.hardness, inverse_scale


@inlined
def _ruled(logit, limit, threshold, hardness, inverse_scale):  # type: ignore[no-untyped-def]
    value = logit * (hardness + logit * inverse_scale) if logit > threshold else logit
    return np.float32(LEFT_OUT) if logit > limit else value


@inlined
def _slope(logit, threshold, hardness, inverse_scale):  # type: ignore[no-untyped-def]
    """The derivative of a ruled logit."""
    slope = hardness + np.float32(2.0) * logit * inverse_scale
    return slope if logit > threshold else np.float32(1.0)


@parallel_kernel
def _ruled_maxima(numbers, bounds, maxima, rules):  # type: ignore[no-untyped-def]
    limit, thresholds, hardnesses, inverse_scale = rules
    hardness = hardnesses[0]
    for piece in prange(-(-maxima.size // _SAMPLES)):
        samples = range(piece * _SAMPLES, min((piece + 1) * _SAMPLES, maxima.size))
        lanes = np.empty(LANES, dtype=np.float32)
        for block in range(bounds.size - 1):
            for b in samples:
                row = _columns(numbers, bounds, block, b, maxima.size)
                threshold = thresholds[b]
                lanes[:] = -np.inf
                whole = row.size // LANES * LANES
                for s in range(0, whole, LANES):
                    for lane in range(LANES):
                        logit = widened(row[s + lane])
                        value = _ruled(logit, limit, threshold, hardness, inverse_scale)
                        lanes[lane] = max(lanes[lane], value)
                largest = maxima[b] if block else np.float32(-np.inf)
                for lane in range(LANES):
                    largest = max(largest, lanes[lane])
                for s in range(whole, row.size):
                    logit = widened(row[s])
                    largest = max(largest, _ruled(logit, limit, threshold, hardness, inverse_scale))
                maxima[b] = largest


@parallel_kernel
def _ruled_exponentials(numbers, bounds, shift, sums, rules):  # type: ignore[no-untyped-def]
    limit, thresholds, hardnesses, inverse_scale = rules
    hardness = hardnesses[0]
    for piece in prange(-(-sums.size // _SAMPLES)):
        samples = range(piece * _SAMPLES, min((piece + 1) * _SAMPLES, sums.size))
        lanes = np.empty(LANES, dtype=np.float32)
        for block in range(bounds.size - 1):
            for b in samples:
                row = _columns(numbers, bounds, block, b, sums.size)
                largest = shift[b]
                threshold = thresholds[b]
                lanes[:] = np.float32(0.0)
                whole = row.size // LANES * LANES
                for s in range(0, whole, LANES):
                    for lane in range(LANES):
                        logit = widened(row[s + lane])
                        ruled = _ruled(logit, limit, threshold, hardness, inverse_scale)
                        value = _exp(ruled - largest)
                        lanes[lane] += value
                        value *= _slope(logit, threshold, hardness, inverse_scale)
                        row[s + lane] = narrowed(value, row)
                total = sum_of(lanes)
                for s in range(whole, row.size):
                    logit = widened(row[s])
                    ruled = _ruled(logit, limit, threshold, hardness, inverse_scale)
                    value = _exp(ruled - largest)
                    total += value
                    value *= _slope(logit, threshold, hardness, inverse_scale)
                    row[s] = narrowed(value, row)
                sums[b] = sums[b] + total if block else total


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
