"""Class centers and states that are kept in bfloat16."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest

from benchmarks.toolkit_head import OneRank
from partial_fc import bfloat16
from partial_fc.head import PartialFC
from partial_fc.optimizers import SGD, Adam
from partial_fc.options import HeadOptions
from partial_fc.rows.host import HostRows
from partial_fc.rows.interface import Placed
from runtime.errors import DataError
from runtime.mxnet import mx
from runtime.state import SHARDED, Stored
from training.checkpoint import files

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
