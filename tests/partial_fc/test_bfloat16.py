"""bfloat16 in NumPy and in kernels against MXNet's own conversion."""

from __future__ import annotations

import zlib
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.toolkit_head import OneRank
from partial_fc import bfloat16
from partial_fc.head import PartialFC
from partial_fc.optimizers import SGD, Adam, Draws, RowGradients, RowOptimizer
from partial_fc.options import HeadOptions
from partial_fc.rows.host import HostRows
from partial_fc.rows.interface import Placed
from runtime.errors import DataError
from runtime.kernels.compiled import parallel_kernel, prange
from runtime.kernels.memory import PART
from runtime.mxnet import mx
from runtime.ndarray import BFLOAT16, memory
from runtime.state import SHARDED, Stored
from training.checkpoint import files

CLASSES, EMBEDDING = 400, 128


class Written(NamedTuple):
    """What kernels make of values and states, and what they read of that."""

    narrow: Any
    random: Any
    kept: Any
    carriers: Any
    wide: Any
    centers: Any
    states: Any


@parallel_kernel
def _write_all(values, states, key, row, narrow, random, kept, carriers, wide, centers, read):
    for i in prange(values.size):
        bits = bfloat16.random_bits(bfloat16.row_key(key, row), i)
        narrow[i] = bfloat16.narrowed(values[i], narrow)
        random[i] = bfloat16.rounded(values[i], random, bits)
        long = bfloat16.lengthened(values[i], kept, bits)
        carriers[i] = bfloat16.carrying(states[i], carriers, bits, long)
        kept[i] = bfloat16.head_of(long, kept)
        wide[i] = bfloat16.widened(narrow[i])
        centers[i] = bfloat16.float_of(bfloat16.long_of(kept[i], carriers[i]))
        read[i] = bfloat16.without_tail(carriers[i])


def write(values, states=None, key=1, row=0, dtype=np.uint16):
    types = [dtype] * 4 + [np.float32] * 3
    written = Written(*(np.empty(values.size, each) for each in types))
    states = values if states is None else states
    _write_all(values, states, np.uint32(key), np.int64(row), *written)
    return written


@pytest.fixture(scope="module")
def values():
    generator = np.random.default_rng(0)
    spread = generator.normal(size=1000) * 10.0 ** generator.integers(-30, 30, size=1000)
    # 1 + 2^-8 lies between two numbers of 8 bits and goes to the even one, 1; 1 + 3 * 2^-8 goes up.
    ties = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0.0, -0.0, np.inf, -np.inf, 1e-40]
    return np.concatenate([spread, ties]).astype(np.float32)


def test_rounding_and_widening_are_those_of_mxnet(values):
    array = mx.nd.amp_cast(mx.nd.array(values), dtype=BFLOAT16)
    theirs, written = memory(array), write(values)
    normal = np.abs(values) > 1e-38
    assert np.array_equal(written.narrow[normal], theirs[normal])
    assert np.array_equal(bfloat16.from_float32(values, theirs.dtype), written.narrow)
    matrix = np.resize(values, (9000, 3))
    assert np.array_equal(bfloat16.narrow_rows(matrix), np.resize(written.narrow, (9000, 3)))
    assert np.array_equal(written.wide, bfloat16.to_float32(written.narrow))
    finite = np.isfinite(values) & normal
    assert written.wide[finite] == pytest.approx(values[finite], rel=2**-8)
    assert written.wide[-8:-3].tolist() == [1.0, 1 + 2**-6, -1.0, 0.0, 0.0]
    # float32 passes through.
    assert bfloat16.to_float32(values) is bfloat16.from_float32(values, values.dtype) is values
    states = values[::-1].copy()
    written = write(values, states, dtype=np.float32)
    for name, found in written._asdict().items():
        expected = states if name in ("carriers", "states") else values
        assert np.array_equal(found, expected), name


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_random_rounding_keeps_the_mean(share):
    """Between a number and the next one, each is as likely as the other one is far."""
    count = 100_000
    for name, unit in (("random", 2**-7), ("centers", 2**-11), ("states", 2**-3)):
        for sign in (1, -1):
            written = write(np.full(count, sign * (1 + share * unit), np.float32))
            found = np.abs(bfloat16.to_float32(getattr(written, name)))
            assert {*found.tolist()} <= {1.0, 1 + unit}
            # Five standard deviations.
            error = 5 * np.sqrt(share * (1 - share) / count)
            assert abs((found > 1).mean() - share) <= error


def test_what_fits_is_not_rounded_and_what_is_not_finite_stays_so(values):
    fitting = bfloat16.to_float32(bfloat16.from_float32(values, np.dtype(np.uint16)))
    assert np.array_equal(bfloat16.to_float32(write(fitting).random), fitting)
    # To the bits of the last one nothing can be added: they would be those of -0.
    full_nan = np.array([0x7FFFFFFF], np.uint32).view(np.float32)[0]
    for lost in (np.inf, -np.inf, np.nan, full_nan):
        numbers = np.array([lost, 1.9999] * 50, np.float32)
        written = write(numbers, numbers[::-1].copy())
        random = bfloat16.to_float32(written.random)[::2]
        assert np.array_equal(random, numbers[::2], equal_nan=True)
        for name in ("random", "kept", "carriers", "centers", "states"):
            found = np.isfinite(bfloat16.to_float32(getattr(written, name)))
            assert found.sum() == 50, name
    assert np.isnan(write(np.full(9, np.nan, np.float32)).wide).all()


def test_random_numbers_differ_by_update_row_and_entry():
    """Two of four rows that share no number would share one entry in 2^15 by chance."""
    half = np.full(1 << 15, 1 + 2**-8, np.float32)
    rows = [(1, 0), (2, 0), (1, 1), (1, 2**32), (1, 2**32 + 5)]
    written = [write(half, None, key, row) for key, row in rows]
    # A run that goes on from a checkpoint rounds as it would have before.
    assert zlib.crc32(written[-1].random.tobytes()) == 4173413054
    drawn = np.array([bfloat16.to_float32(each.random) > 1 for each in written], float)
    correlations = np.corrcoef(drawn) - np.eye(len(rows))
    assert np.abs(correlations).max() < 5 / np.sqrt(half.size)
    for shift in (1, 2, 16, 64, 512):
        shifted = np.corrcoef(drawn[0], np.roll(drawn[0], shift))[0, 1]
        assert abs(shifted) < 5 / np.sqrt(half.size)


def updated(optimizer: RowOptimizer, slope: float = 0.0) -> dict[str, NDArray[np.uint16]]:
    """Centers and states of equal entries, rows of two parts, after an update with equal slopes."""
    rows, shape = np.arange(8), (8, 2 * PART)
    names = "centers", *(name for name, state in optimizer.states.items() if state.wide)
    arrays = {name: np.zeros(shape, np.uint16) for name in names}
    arrays["centers"][:] = bfloat16.from_float32(np.full(1, 1.1, np.float32), np.dtype(np.uint16))
    inverse_norms, gradient = np.ones(rows.size, np.float32), np.full(shape, slope, np.float32)
    gradients = RowGradients(rows, inverse_norms, gradient, Draws(np.uint32(1), np.int64(0)))
    counts = np.zeros(rows.size, np.int32)
    optimizer.update_host({**arrays, "step_counts": counts}, gradients, 0.1)
    return arrays


def test_parts_of_a_row_and_second_moments_are_rounded_by_other_numbers():
    for optimizer in (SGD(0.0, 0.01), Adam(0.01, decoupled=False)):
        arrays = updated(optimizer)
        assert len(arrays) > 1
        for name in arrays.keys() - {"centers"}:
            first, second = np.split(arrays[name], 2, axis=1)
            assert np.mean(first != second) > 0.1, name
    # Both round by the upper bits of a number; nothing but decay moves the centers here.
    arrays = updated(Adam(weight_decay=0.0155, decoupled=True, epsilon=1e9), slope=1.0)
    longs = arrays["centers"].astype(np.uint32) << 4 | arrays["first_moments"] & 0xF
    raised = [np.ravel(values > values.min()) for values in (longs, arrays["second_moments"])]
    assert all(0.1 < np.mean(one) < 0.9 for one in raised)
    assert abs(np.corrcoef(raised)[0, 1]) < 5 / np.sqrt(longs.size)


def test_a_center_has_twenty_bits_and_its_momentum_twelve(values):
    states = values[::-1].copy()
    written = write(values, states)
    normal = np.isfinite(values) & (np.abs(values) > 1e-37)
    centers, momenta = written.centers, written.states
    assert centers[normal] == pytest.approx(values[normal], rel=2**-11)
    assert np.abs(centers[normal] / values[normal] - 1).max() > 2**-13
    assert momenta[normal[::-1]] == pytest.approx(states[normal[::-1]], rel=2**-3)
    # What is read of the centers alone is cut off, and so never further from zero.
    alone = bfloat16.to_float32(written.kept)
    assert np.array_equal(alone.view(np.uint32) >> 16, centers.view(np.uint32) >> 16)
    assert np.array_equal(bfloat16.carrier_to_float32(written.carriers), momenta, equal_nan=True)
    # Both are kept again without a loss, by any random numbers.
    again, finite = write(centers, momenta, key=2), np.isfinite(centers) & np.isfinite(momenta)
    assert np.array_equal(written.kept[finite], again.kept[finite])
    assert np.array_equal(written.carriers[finite], again.carriers[finite])


def test_momenta_are_converted_to_the_nearest_without_tails():
    values = np.array([1.0, 1.06, 1.07, -1.07, 0.0, 1e-3], np.float32)
    narrow = bfloat16.carrier_from_float32(values)
    assert not np.any(narrow & 0xF)
    expected = [1.0, 1.0, 1.125, -1.125, 0.0, pytest.approx(1e-3, rel=2**-4)]
    assert bfloat16.carrier_to_float32(narrow).tolist() == expected


C, D = 40, 24
OPTIMIZERS = [SGD(0.9, 5e-4), Adam(0.01, decoupled=False), Adam(0.2, decoupled=True)]
# The states whose lower bits are those of the centers.
CARRIERS = ("momenta", "first_moments")


@pytest.fixture
def centers():
    return np.random.default_rng(0).normal(size=(C, D)).astype(np.float32)


def update(rows, chosen, gradient, number=0, lr=0.1):
    chosen = np.asarray(chosen)
    units, array = mx.nd.empty((chosen.size, D)), mx.nd.empty((chosen.size, D))
    placed = Placed(chosen, np.zeros(0, np.int64), None, number)
    gathered = rows.gather(placed, slice(0, chosen.size), units, array)
    array[:] = gradient
    rows.update(gathered, lr)
    return units.asnumpy()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "adam", "adamw"])
def test_an_update_is_that_of_float32_rounded_to_a_neighbor(centers, optimizer):
    narrow = bfloat16.narrow_rows(centers)
    kept = HostRows(narrow.copy(), optimizer)
    exact = HostRows(bfloat16.to_float32(narrow), optimizer)
    chosen = np.arange(0, C, 3)
    gradient = np.random.default_rng(1).normal(size=(chosen.size, D)).astype(np.float32)
    units = [update(rows, chosen, gradient) for rows in (kept, exact)]
    assert units[0] == pytest.approx(units[1], abs=1e-7)
    arrays, expected = kept.export(), exact.export()
    for name, array in arrays.items():
        if array.dtype != np.uint16:
            assert np.array_equal(array, expected[name])
            continue
        found, relative, error = bfloat16.to_float32(array), 2**-7, 1e-6
        if name in CARRIERS:
            found, relative = bfloat16.carrier_to_float32(array), 2**-3
        elif name == "centers":
            (carrier,) = (arrays[name] for name in CARRIERS if name in arrays)
            long = array.astype(np.uint32) << 4 | (carrier & 0xF)
            # Adam's step, at most 0.1, follows from two moments that are rounded, too.
            error = 1.3e-2 if isinstance(optimizer, Adam) else 1e-6
            found, relative = (long << 12).view(np.float32), 2**-11
        assert np.abs(found - expected[name]).max() > 0
        assert found == pytest.approx(expected[name], rel=relative, abs=error)
    others = np.setdiff1d(np.arange(C), chosen)
    assert np.array_equal(arrays["centers"][others], narrow[others])


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "adam", "adamw"])
def test_a_class_is_rounded_alike_on_any_number_of_ranks(centers, optimizer):
    narrow = bfloat16.narrow_rows(centers)
    whole = HostRows(narrow.copy(), optimizer, seed=5)
    bounds = ((0, 17), (17, C))
    parts = [
        HostRows(narrow[first:last].copy(), optimizer, seed=5, first_class=first)
        for first, last in bounds
    ]
    gradient = np.random.default_rng(1).normal(size=(C, D)).astype(np.float32)
    for number in range(3):
        update(whole, np.arange(C), gradient, number)
        for part, (first, last) in zip(parts, bounds):
            update(part, np.arange(last - first), gradient[first:last], number)
    for name, array in whole.export().items():
        assert np.array_equal(array, np.concatenate([one.export()[name] for one in parts])), name


def test_seed_and_update_change_the_rounding(centers):
    def moved(seed, number):
        rows = HostRows(bfloat16.narrow_rows(centers), SGD(0.9, 0.0), seed=seed)
        update(rows, np.arange(C), 0.01 * centers[::-1], number)
        return rows.export()["centers"]

    assert np.array_equal(moved(1, 1), moved(1, 1))
    assert not np.array_equal(moved(1, 1), moved(1, 2))
    assert not np.array_equal(moved(1, 1), moved(2, 1))


def test_rows_of_both_types_load_each_other(centers):
    narrow = bfloat16.narrow_rows(centers)
    kept, exact = HostRows(np.zeros_like(narrow), OPTIMIZERS[0]), HostRows(centers, OPTIMIZERS[0])
    for rows in (kept, exact):
        rows.load("momenta", 3, centers[3:9])
    assert np.array_equal(exact.export()["momenta"][3:9], centers[3:9])
    rounded = bfloat16.carrier_from_float32(centers[3:9])
    assert np.array_equal(kept.export()["momenta"][3:9], rounded)
    exact.load("momenta", 0, rounded | np.uint16(0xF))
    assert np.array_equal(exact.export()["momenta"][:6], bfloat16.carrier_to_float32(rounded))
    # Of the same type all bits are, those of the centers included.
    kept.load("momenta", 0, rounded | np.uint16(0xF))
    assert np.array_equal(kept.export()["momenta"][:6], rounded | np.uint16(0xF))
    kept.load("centers", 3, centers[3:9])
    assert np.array_equal(kept.export()["centers"][3:9], narrow[3:9])
    exact.load("centers", 0, narrow[:5])
    assert np.array_equal(exact.export()["centers"][:5], bfloat16.to_float32(narrow[:5]))
    assert kept.snapshot()["momenta"].dtype == np.uint16


def test_a_head_takes_half_of_the_memory():
    narrow, plain = (
        PartialFC.create(
            HeadOptions(center_dtype=dtype), (1000, 64), OneRank(), mx.cpu(),
            optimizer=OPTIMIZERS[0], seed=1,
        ).rows.export()
        for dtype in ("bfloat16", "float32")
    )  # fmt: skip
    assert all(2 * array.nbytes == plain[name].nbytes for name, array in narrow.items())
    assert np.array_equal(narrow["centers"], bfloat16.narrow_rows(plain["centers"]))


def test_centers_that_are_not_finite_are_not_saved():
    array = np.full((4, 3), 0x3F80, np.uint16)
    files._write_array(BytesIO(), "head/centers", Stored(SHARDED, array, 0, 4))
    for bits in (0x7F80, 0xFF80, 0x7FC1):
        array[2, 1] = bits
        with pytest.raises(DataError, match="numbers that are not finite"):
            files._write_array(BytesIO(), "head/centers", Stored(SHARDED, array, 0, 4))
