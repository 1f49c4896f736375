"""The logits of a step in the host's memory: kernels that turn them into weights of a gradient.

Shapes: see ``partial_fc.rows.interface``.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from partial_fc.bfloat16 import narrowed, widened
from partial_fc.rows.interface import LEFT_OUT, LOWEST, NEVER, Array, Curriculum, Logits, Negatives
from partial_fc.shard import Int64Array
from runtime.kernels.compiled import inlined, overload, parallel_kernel, prange, types
from runtime.kernels.sums import LANES, largest_of, sum_of


def bounds(logits: Logits) -> Int64Array:
    """The first column of each block, and S."""
    return np.append(np.arange(0, logits.num_rows, logits.height), logits.num_rows)


def entries(logits: Logits, columns_B: Int64Array) -> Int64Array:
    """Where a column of each sample is among the numbers, int64 [B]."""
    starts_B = columns_B // logits.height * logits.height
    widths_B = np.minimum(logits.height, logits.num_rows - starts_B)
    samples_B = np.arange(logits.batch)
    entries_B: Int64Array = logits.batch * starts_B + samples_B * widths_B + columns_B - starts_B
    return entries_B


def numbers_of(
    rules: Optional[Negatives], batch: int
) -> Optional[tuple[np.float32, Any, Any, np.float32]]:
    """The limit, thresholds [B], hardness [1] and inverse scale of the kernel."""
    if rules is None:
        return None
    limit, inverse_scale = np.float32(rules.limit), np.float32(1.0 / rules.scale)
    none = np.full(batch, NEVER, np.float32), np.zeros(1, np.float32)
    curriculum = rules.curriculum or Curriculum(*none)
    return limit, curriculum.thresholds_B, curriculum.hardness, inverse_scale


def take_entries(numbers: NDArray[Any], entries_B: Int64Array, values_B: Array) -> None:
    """Read entries."""
    values_B[:] = widened(numbers[entries_B])


def put_entries(
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


def _rule_of(rules: Any, b: Any) -> Any:
    """In the kernel: the rule for the negatives of a sample; None where there is none."""
    raise NotImplementedError("compiled only")


@overload(_rule_of)
def _compiled_rule_of(rules, b):  # type: ignore[no-untyped-def]
    if rules is types.none:
        return lambda rules, b: None

    def rule_of(rules, b):  # type: ignore[no-untyped-def]
        limit, thresholds, hardness, inverse_scale = rules
        return limit, thresholds[b], hardness[0], inverse_scale

    return rule_of


@inlined
def _hardened(logit, rule):  # type: ignore[no-untyped-def]
    limit, threshold, hardness, inverse_scale = rule
    value = logit * (hardness + logit * inverse_scale) if logit > threshold else logit
    return np.float32(LEFT_OUT) if logit > limit else value


@inlined
def _slope(logit, rule):  # type: ignore[no-untyped-def]
    """The derivative of a ruled logit."""
    _, threshold, hardness, inverse_scale = rule
    slope = hardness + np.float32(2.0) * logit * inverse_scale
    return slope if logit > threshold else np.float32(1.0)


def _ruled(logit: Any, rule: Any) -> Any:
    """In the kernel: the logit after the rule."""
    raise NotImplementedError("compiled only")


@overload(_ruled)
def _compiled_ruled(logit, rule):  # type: ignore[no-untyped-def]
    if rule is types.none:
        return lambda logit, rule: logit
    return lambda logit, rule: _hardened(logit, rule)


def _largest(row: Any, rule: Any, least: Any) -> Any:
    """In the kernel: the largest of the logits of a row after the rule and of ``least``."""
    raise NotImplementedError("compiled only")


@overload(_largest)
def _compiled_largest(row, rule, least):  # type: ignore[no-untyped-def]
    if rule is types.none:
        return lambda row, rule, least: largest_of(row, least)

    def largest(row, rule, least):  # type: ignore[no-untyped-def]
        found = np.full(LANES, least)
        whole = row.size // LANES * LANES
        for s in range(0, whole, LANES):
            for lane in range(LANES):
                found[lane] = max(found[lane], _ruled(widened(row[s + lane]), rule))
        for s in range(whole, row.size):
            found[0] = max(found[0], _ruled(widened(row[s]), rule))
        return largest_of(found, least)

    return largest


def _weighted(exponential: Any, logit: Any, rule: Any) -> Any:
    """In the kernel: the product with the derivative of a ruled logit."""
    raise NotImplementedError("compiled only")


@overload(_weighted)
def _compiled_weighted(exponential, logit, rule):  # type: ignore[no-untyped-def]
    if rule is types.none:
        return lambda exponential, logit, rule: exponential
    return lambda exponential, logit, rule: exponential * _slope(logit, rule)


# Samples that a thread passes over twice: few enough for its caches, and in a block their memory is
# one piece.
_SAMPLES = 4


@parallel_kernel
def exponentiate(numbers, bounds, targets, shift, sums, rules):  # type: ignore[no-untyped-def]
    """See ``Rows.exponentiate``; ``targets``: their entries, whether they are local, and logits."""
    entries, local, target_logits = targets
    for piece in prange(-(-sums.size // _SAMPLES)):
        samples = range(piece * _SAMPLES, min((piece + 1) * _SAMPLES, sums.size))
        lanes = np.empty(LANES, dtype=np.float32)
        for b in samples:
            shift[b], sums[b] = np.float32(LOWEST), np.float32(0.0)
            if local[b]:
                numbers[entries[b]] = narrowed(np.float32(LEFT_OUT), numbers)
                shift[b] = target_logits[b]
        for block in range(bounds.size - 1):
            for b in samples:
                row = _columns(numbers, bounds, block, b, sums.size)
                rule = _rule_of(rules, b)
                shift[b] = _largest(row, rule, shift[b])
        for block in range(bounds.size - 1):
            for b in samples:
                row = _columns(numbers, bounds, block, b, sums.size)
                rule = _rule_of(rules, b)
                largest = shift[b]
                lanes[:] = np.float32(0.0)
                whole = row.size // LANES * LANES
                for s in range(0, whole, LANES):
                    for lane in range(LANES):
                        logit = widened(row[s + lane])
                        value = _exp(_ruled(logit, rule) - largest)
                        row[s + lane] = narrowed(_weighted(value, logit, rule), row)
                        lanes[lane] += value
                total = sum_of(lanes)
                for s in range(whole, row.size):
                    logit = widened(row[s])
                    value = _exp(_ruled(logit, rule) - largest)
                    row[s] = narrowed(_weighted(value, logit, rule), row)
                    total += value
                sums[b] += total
