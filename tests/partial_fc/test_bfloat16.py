"""bfloat16 in NumPy and in kernels against MXNet's own conversion."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.toolkit_head import OneRank
from partial_fc import bfloat16
from partial_fc.bfloat16 import (
    carrying,
    float_of,
    head_of,
    lengthened,
    long_of,
    narrowed,
    random_bits,
    rounded,
    row_key,
    widened,
    without_tail,
)
from partial_fc.head import PartialFC
from partial_fc.optimizers import SGD, Adam, Draws, RowGradients, RowOptimizer
from partial_fc.options import HeadOptions
from runtime.kernels.compiled import parallel_kernel, prange
from runtime.kernels.memory import PART
from runtime.mxnet import mx
from runtime.ndarray import BFLOAT16, memory

CLASSES, EMBEDDING = 400, 128


@parallel_kernel
def _narrow_all(values, out):
    for i in prange(values.size):
        out[i] = narrowed(values[i], out)


@parallel_kernel
def _widen_all(values, out):
    for i in prange(values.size):
        out[i] = widened(values[i])


@parallel_kernel
def _round_all(values, key, row, out):
    for i in prange(values.size):
        out[i] = rounded(values[i], out, random_bits(row_key(key, row), i))


@parallel_kernel
def _keep_all(centers, states, key, kept, carriers):
    for i in prange(centers.size):
        random = random_bits(key, i)
        long = lengthened(centers[i], kept, random)
        carriers[i] = carrying(states[i], carriers, random, long)
        kept[i] = head_of(long, kept)


@parallel_kernel
def _read_all(kept, carriers, centers, states):
    for i in prange(kept.size):
        centers[i] = float_of(long_of(kept[i], carriers[i]))
        states[i] = without_tail(carriers[i])


def kept_and_read(centers, states, dtype=np.uint16, key=1):
    """Arrays of centers and of the state with their tails, and what is read of both."""
    kept, carriers = np.empty(centers.size, dtype), np.empty(centers.size, dtype)
    _keep_all(centers, states, np.uint32(key), kept, carriers)
    read = np.empty_like(centers), np.empty_like(states)
    _read_all(kept, carriers, *read)
    return (kept, carriers), read


def rounded_at_random(values, key=1, row=0):
    out = np.empty(values.size, np.uint16)
    _round_all(values, np.uint32(key), np.int64(row), out)
    return bfloat16.to_float32(out)


@pytest.fixture(scope="module")
def values():
    generator = np.random.default_rng(0)
    spread = generator.normal(size=1000) * 10.0 ** generator.integers(-30, 30, size=1000)
    # 1 + 2^-8 lies between two numbers of 8 bits and goes to the even one, 1; 1 + 3 * 2^-8 goes up.
    ties = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0.0, -0.0, np.inf, -np.inf, 1e-40]
    return np.concatenate([spread, ties]).astype(np.float32)


def test_both_round_as_mxnet_does(values):
    array = mx.nd.amp_cast(mx.nd.array(values), dtype=BFLOAT16)
    theirs = memory(array)
    compiled = np.empty(values.size, np.uint16)
    _narrow_all(values, compiled)
    normal = np.abs(values) > 1e-38
    assert np.array_equal(compiled[normal], theirs[normal])
    assert np.array_equal(bfloat16.from_float32(values, compiled.dtype), compiled)


def test_both_widen_exactly(values):
    halves = bfloat16.from_float32(values, np.dtype(np.uint16))
    compiled = np.empty(values.size, np.float32)
    _widen_all(halves, compiled)
    assert np.array_equal(compiled, bfloat16.to_float32(halves))
    finite = np.isfinite(values) & (np.abs(values) > 1e-38)
    assert compiled[finite] == pytest.approx(values[finite], rel=2**-8)
    assert compiled[-8:-3].tolist() == [1.0, 1 + 2**-6, -1.0, 0.0, 0.0]


def test_float32_passes_through(values):
    assert bfloat16.to_float32(values) is values
    assert bfloat16.from_float32(values, values.dtype) is values
    same = np.empty_like(values)
    _narrow_all(values, same)
    assert np.array_equal(same, values)


def test_nan_stays_nan():
    out = np.empty(1, np.uint16)
    _narrow_all(np.array([np.nan], np.float32), out)
    assert np.isnan(bfloat16.to_float32(out)).all()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("sign", [1, -1])
def test_random_rounding_keeps_the_mean(share, sign):
    """Between 1 and the next number, 1 + 2^-7, each is as likely as the other one is far."""
    count = 100_000
    found = rounded_at_random(np.full(count, sign * (1 + share * 2**-7), np.float32))
    above = np.abs(found) > 1
    assert set(np.abs(found).tolist()) <= {1.0, 1 + 2**-7}
    # Five standard deviations.
    assert abs(above.mean() - share) <= 5 * np.sqrt(share * (1 - share) / count)


def test_what_fits_is_not_rounded_and_what_is_not_finite_stays_so(values):
    fitting = bfloat16.to_float32(bfloat16.from_float32(values, np.dtype(np.uint16)))
    assert np.array_equal(rounded_at_random(fitting), fitting)
    lost = np.array([np.inf, -np.inf, np.nan, FULL_NAN] * 50, np.float32)
    assert np.array_equal(rounded_at_random(lost), lost, equal_nan=True)


def test_random_numbers_differ_by_update_row_and_entry():
    """Two of four rows that share no number would share one entry in 2^15 by chance."""
    half = np.full(1 << 15, 1 + 2**-8, np.float32)
    rows = [(1, 0), (2, 0), (1, 1), (1, 2**32), (1, 2**32 + 1)]
    drawn = np.array([rounded_at_random(half, key, row) > 1 for key, row in rows], float)
    correlations = np.corrcoef(drawn) - np.eye(len(rows))
    assert np.abs(correlations).max() < 5 / np.sqrt(half.size)
    for shift in (1, 2, 16, 64, 512):
        shifted = np.corrcoef(drawn[0], np.roll(drawn[0], shift))[0, 1]
        assert abs(shifted) < 5 / np.sqrt(half.size)


def updated(optimizer: RowOptimizer, slope: float = 0.0) -> dict[str, NDArray[np.uint16]]:
    """Centers and states of equal entries, rows of two parts, after an update with equal slopes."""
    rows = np.arange(8)
    shape = rows.size, 2 * PART
    names = "centers", *(name for name, state in optimizer.states.items() if state.wide)
    arrays = {name: np.zeros(shape, np.uint16) for name in names}
    arrays["centers"][:] = bfloat16.from_float32(np.full(1, 1.1, np.float32), np.dtype(np.uint16))
    inverse_norms, gradient = np.ones(rows.size, np.float32), np.full(shape, slope, np.float32)
    gradients = RowGradients(rows, inverse_norms, gradient, Draws(np.uint32(1), np.int64(0)))
    counts = np.zeros(rows.size, np.int32)
    optimizer.update_host({**arrays, "step_counts": counts}, gradients, 0.1)
    return arrays


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        (SGD(momentum=0.0, weight_decay=0.01), ("momenta",)),
        (Adam(weight_decay=0.01, decoupled=False), ("first_moments", "second_moments")),
    ],
)
def test_the_parts_of_a_row_are_rounded_by_other_numbers(optimizer, states):
    arrays = updated(optimizer)
    for name in states:
        first, second = np.split(arrays[name], 2, axis=1)
        share = np.mean(first != second)
        assert share > 0.1, (name, share)


def test_a_center_is_rounded_by_other_numbers_than_its_second_moment():
    """Both round by the upper bits of a number; nothing but decay moves the centers here."""
    arrays = updated(Adam(weight_decay=0.0155, decoupled=True, epsilon=1e9), slope=1.0)
    longs = arrays["centers"].astype(np.uint32) << 4 | arrays["first_moments"] & 0xF
    raised = [np.ravel(values > values.min()) for values in (longs, arrays["second_moments"])]
    assert all(0.1 < np.mean(one) < 0.9 for one in raised)
    assert abs(np.corrcoef(raised)[0, 1]) < 5 / np.sqrt(longs.size)


def test_narrow_rows_rounds_to_the_nearest(values):
    matrix = np.resize(values, (9000, 3))
    expected = bfloat16.from_float32(matrix, np.dtype(np.uint16))
    assert np.array_equal(bfloat16.narrow_rows(matrix), expected)


def test_training_in_bfloat16_loses_nothing():
    """500 updates on features with noise: loss within 1 % of float32, accuracy within 0.01."""

    def train(dtype, center_dtype="float32"):
        options = {"head_dtype": dtype, "center_dtype": center_dtype, "sample_ratio": 0.5}
        head = PartialFC.create(
            HeadOptions(margins=(1, 0, 0.2), scale=32.0, **options),
            (CLASSES, EMBEDDING), OneRank(), mx.cpu(), optimizer=SGD(0.9, 5e-4), seed=1,
        )  # fmt: skip
        generator = np.random.default_rng(3)
        prototypes = generator.normal(size=(CLASSES, EMBEDDING))
        losses = []
        for update in range(500):
            labels = generator.integers(CLASSES, size=128)
            noise = 1.5 * generator.normal(size=(128, EMBEDDING))
            features = mx.nd.array(prototypes[labels] + noise)
            lr = 0.1 * (1 - update / 500) ** 2
            losses.append(head.step(features, labels, update, lr).loss.asscalar())
        labels = generator.integers(CLASSES, size=2000)
        features = prototypes[labels] + 1.5 * generator.normal(size=(2000, EMBEDDING))
        centers = bfloat16.to_float32(head.rows.export()["centers"])
        units = centers / np.linalg.norm(centers, axis=1, keepdims=True)
        return np.array(losses), np.mean((features @ units.T).argmax(axis=1) == labels)

    losses, accuracy = train("float32")
    halved_losses, halved_accuracy = train("bfloat16")
    assert losses[-50:].mean() < 0.4 * losses[:5].mean() and accuracy > 0.9
    assert np.abs(halved_losses / losses - 1).max() < 0.01
    assert abs(halved_accuracy - accuracy) < 0.01

    kept_losses, kept_accuracy = train("float32", "bfloat16")
    assert kept_losses[-50:].mean() == pytest.approx(losses[-50:].mean(), rel=0.01)
    assert abs(kept_accuracy - accuracy) < 0.01


def test_a_center_has_twenty_bits_and_its_momentum_twelve(values):
    states = values[::-1].copy()
    (kept, carriers), (centers, momenta) = kept_and_read(values, states)
    normal = np.isfinite(values) & (np.abs(values) > 1e-37)
    assert centers[normal] == pytest.approx(values[normal], rel=2**-11)
    assert np.abs(centers[normal] / values[normal] - 1).max() > 2**-13
    normal = normal[::-1]
    assert momenta[normal] == pytest.approx(states[normal], rel=2**-3)
    # What is read of the centers alone is cut off, and so never further from zero.
    alone = bfloat16.to_float32(kept)
    assert np.array_equal(alone.view(np.uint32) >> 16, centers.view(np.uint32) >> 16)
    assert np.array_equal(bfloat16.carrier_to_float32(carriers), momenta, equal_nan=True)
    # Both are kept again without a loss, by any random numbers.
    again, _ = kept_and_read(centers, momenta, key=2)
    finite = np.isfinite(centers) & np.isfinite(momenta)
    for first, second in zip((kept, carriers), again):
        assert np.array_equal(first[finite], second[finite])


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_centers_and_momenta_keep_the_mean(share):
    count = 100_000
    for unit, part in ((2**-11, 0), (2**-3, 1)):
        value = np.full(count, 1 + share * unit, np.float32)
        above = kept_and_read(value, value)[1][part] > 1
        assert abs(above.mean() - share) <= 5 * np.sqrt(share * (1 - share) / count)


# To whose bits nothing can be added: they would be those of -0.
FULL_NAN = np.array([0x7FFFFFFF], np.uint32).view(np.float32)[0]


@pytest.mark.parametrize("lost", [np.inf, -np.inf, np.nan, FULL_NAN])
def test_what_is_not_finite_can_be_found(lost):
    numbers = np.array([lost, 1.9999] * 50, np.float32)
    arrays, read = kept_and_read(numbers, numbers[::-1].copy())
    for array, values_read in zip(arrays, read):
        assert np.isfinite(values_read).sum() == 50
        assert np.isfinite(bfloat16.to_float32(array)).sum() == 50


def test_float32_centers_and_momenta_pass_through(values):
    arrays, read = kept_and_read(values, values[::-1].copy(), np.float32)
    for found, expected in zip((*arrays, *read), (values, values[::-1]) * 2):
        assert np.array_equal(found, expected)


def test_momenta_are_converted_to_the_nearest_without_tails():
    values = np.array([1.0, 1.06, 1.07, -1.07, 0.0, 1e-3], np.float32)
    narrow = bfloat16.carrier_from_float32(values)
    assert not np.any(narrow & 0xF)
    expected = [1.0, 1.0, 1.125, -1.125, 0.0, pytest.approx(1e-3, rel=2**-4)]
    assert bfloat16.carrier_to_float32(narrow).tolist() == expected
