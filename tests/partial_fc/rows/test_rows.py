"""The row kernels of the host and the operators of a device against plain NumPy in float64."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numba
import numpy as np
import pytest

from partial_fc.negatives import NEVER, Curriculum, Negatives
from partial_fc.optimizers import SGD, Adam
from partial_fc.rows import device as device_module
from partial_fc.rows import host
from partial_fc.rows.device import DeviceRows
from partial_fc.rows.host import HostRows
from partial_fc.rows.interface import Logits
from partial_fc.shard import Sample
from runtime.kernels.sums import product_of
from runtime.mxnet import mx
from tests.support.reference_optimizers import reference_update, zero_states

# Vectors of two times 64 and a rest.
C, S, D, B = 50, 13, 140, 6
SGD_09 = SGD(momentum=0.9, weight_decay=0.01)
MAKERS: dict[str, Any] = {
    "host": HostRows,
    # Blocks of eleven rows.
    "device": partial(DeviceRows, context=mx.cpu(1), max_elements=11 * D),
    "one block": partial(DeviceRows, context=mx.cpu(1)),
}


@pytest.fixture(params=list(MAKERS))
def make_rows(request):
    # The arrays of a test are made where the rows are: MXNet does not mind mixed contexts.
    with mx.cpu() if request.param == "host" else mx.cpu(1):
        yield lambda centers, optimizer=SGD_09: MAKERS[request.param](centers, optimizer)


@pytest.fixture
def centers():
    return np.random.default_rng(0).normal(size=(C, D)).astype(np.float32)


@pytest.fixture
def rows(make_rows, centers):
    return make_rows(centers)


def gather(rows, chosen, units, gradient):
    """All rows in one block."""
    sample = Sample(np.asarray(chosen), np.zeros(1, np.int64), np.ones(1, bool))
    return rows.gather(rows.place(sample), slice(0, len(chosen)), units, gradient)


def gathered(rows, chosen, width=D):
    """The unit vectors of some rows, the array for their gradient, and what ``update`` needs."""
    units, gradient = mx.nd.empty((len(chosen), width)), mx.nd.empty((len(chosen), width))
    return units, gradient, gather(rows, chosen, units, gradient)


def update(rows, chosen, slope, lr=0.1, width=D):
    _, gradient, what = gathered(rows, chosen, width)
    gradient[:] = slope
    rows.update(what, lr)


def as_logits(rows, matrix):
    """A matrix [B, columns] in blocks: on the host of eleven columns, or twice 64 and two."""
    matrix = np.asarray(matrix, dtype=np.float32)
    batch, columns = matrix.shape
    height = min(130 if columns > 130 else 11, columns) if isinstance(rows, HostRows) else columns
    logits = Logits(mx.nd.zeros((matrix.size,)), batch, columns, height)
    for start, block in zip(range(0, columns, height), logits.blocks()):
        block[:] = matrix[:, start : start + height]
    return logits


def test_a_zero_center_stays_finite(make_rows, centers):
    centers[4] = 0.0
    rows = make_rows(centers)
    assert not gathered(rows, [4])[0].asnumpy().any()
    update(rows, [4], 0.0)
    assert np.array_equal(rows.export()["centers"][4], np.zeros(D))


@pytest.mark.parametrize(
    "optimizer",
    [SGD_09, Adam(0.01, decoupled=False), Adam(0.2, decoupled=True)],
    ids=["sgd", "adam", "adamw"],
)
def test_updates_move_sampled_rows_only(make_rows, centers, optimizer):
    sampled = np.sort(np.random.default_rng(1).choice(C, S, replace=False))
    gradient = np.random.default_rng(2).normal(size=(S, D)).astype(np.float32)
    rows = make_rows(centers.copy(), optimizer)
    expected = zero_states(optimizer, centers)
    # The last sample is a part of the others, so that rows have seen different numbers of updates.
    for chosen in (sampled, sampled, sampled[::3]):
        slope = gradient[: chosen.size]
        update(rows, chosen, slope)
        norms = np.linalg.norm(expected["centers"][chosen], axis=1, keepdims=True)
        exact = expected["centers"][chosen] / norms
        tangent = (slope - (slope * exact).sum(axis=1, keepdims=True) * exact) / norms
        reference_update(optimizer, expected, chosen, tangent, 0.1)
    actual = rows.export()
    assert actual.keys() == expected.keys()
    untouched = np.setdiff1d(np.arange(C), sampled)
    for name, state in optimizer.states.items():
        assert actual[name] == pytest.approx(expected[name], abs=2e-5)
        assert actual[name].dtype == state.dtype and not actual[name][untouched].any()
    assert actual["centers"] == pytest.approx(expected["centers"], abs=2e-5)
    assert np.array_equal(actual["centers"][untouched], centers[untouched])


@pytest.mark.parametrize("chosen", [range(5), range(C)], ids=["sampled", "all"])
def test_a_step_without_its_update_leaves_no_trace(make_rows, centers, chosen):
    """As with --on-nan skip; the arrays of the step before are used again."""
    slope = np.random.default_rng(2).normal(size=(len(chosen), D))
    rows, expected = make_rows(centers.copy()), make_rows(centers.copy())
    units, gradient, _ = gathered(rows, chosen)
    what = gather(rows, chosen, units, gradient)
    gradient[:] = slope
    rows.update(what, 0.1)
    update(expected, chosen, slope)
    assert np.array_equal(rows.export()["centers"], expected.export()["centers"])
    assert not np.array_equal(rows.export()["centers"], centers)


def exponentiate(rows, logits, columns=None, targets=None, rules=None):
    """Where ``columns`` are given they are the targets, with these logits; else all are elsewhere.

    Returns the shifts, the sums, and the matrix that is left.
    """
    array = as_logits(rows, logits)
    batch, num_rows = np.shape(logits)
    local = np.zeros(batch, bool) if columns is None else np.array(columns) >= 0
    columns = np.zeros(batch, int) if columns is None else np.maximum(columns, 0)
    sample = rows.place(Sample(np.arange(num_rows) % C, columns, local))
    # Any number where the class belongs to another rank.
    targets = np.full(batch, np.nan) if targets is None else targets
    shift, sums = rows.exponentiate(array, sample, mx.nd.array(targets), rules)
    left = np.concatenate([block.asnumpy() for block in array.blocks()], axis=1)
    return shift.asnumpy(), sums.asnumpy(), left


@pytest.mark.parametrize("columns", [1, 16, 65, 200, 1000])
def test_exponentials_and_the_largest_logit_wherever_it_stands(rows, columns):
    for spread in (1.0, 60.0):
        logits = np.random.default_rng(3).normal(size=(B, columns)).astype(np.float32) * spread
        shift, sums, found = exponentiate(rows, logits)
        assert np.array_equal(shift, logits.max(axis=1))
        exact = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        assert found == pytest.approx(exact, rel=2e-5, abs=1e-37)
        assert sums == pytest.approx(exact.sum(axis=1), rel=1e-5)
    if columns <= 200:
        shift, _, _ = exponentiate(rows, -2.0 + np.eye(columns, dtype=np.float32))
        assert shift.tolist() == [-1.0] * columns


def test_a_target_counts_with_its_margin_and_not_among_the_negatives(rows):
    """Its own logit is the largest of the first sample, that with the margin of the second."""
    logits = [[1.0, 9.0, 2.0, 1.5], [1.0, 2.0, -3.0, 0.0], [4.0, 3.0, 2.0, 1.0]]
    shift, sums, found = exponentiate(rows, logits, [1, 2, -1], [1.25, 5.0, np.nan])
    assert shift.tolist() == [2.0, 5.0, 4.0]
    expected = np.exp(np.array([[-1, -np.inf, 0, -0.5], [-4, -3, -np.inf, -5], [0, -1, -2, -3]]))
    assert found == pytest.approx(expected, rel=1e-5)
    assert found[0, 1] == found[1, 2] == 0.0
    assert sums == pytest.approx(expected.sum(axis=1), rel=1e-6)


@pytest.mark.parametrize("rules", [None, Negatives(5.0, None, scale=8.0)])
def test_a_rank_without_negatives_has_no_weight(rows, rules):
    """Of the first sample it has the target alone, of the second nothing that is not left out."""
    shift, sums, found = exponentiate(rows, [[7.0], [-1e30]], [0, -1], [6.0, np.nan], rules)
    assert shift[0] == 6.0 and shift[1] < -1e28
    assert sums.tolist() == [0.0, 0.0] and found.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize(("columns", "part_bytes"), [(1, 2**27), (37, 4 * 37 * 4), (200, 1)])
@pytest.mark.parametrize(("limit", "adapts"), [(10.0, True), (NEVER, True), (10.0, False)])
def test_rules_for_negatives(rows, columns, limit, adapts, part_bytes, monkeypatch):
    """Logits above the limit are left out, x above its threshold becomes x · (t + x / scale)."""
    monkeypatch.setattr(device_module, "PART_BYTES", part_bytes)
    generator = np.random.default_rng(4)
    logits = generator.normal(size=(B, columns)).astype(np.float32) * 8
    logits[0, 0] = -1e30
    thresholds = generator.normal(size=B).astype(np.float32) * 4
    thresholds[1] = 1e30
    curriculum = Curriculum(mx.nd.array(thresholds), mx.nd.array([0.3])) if adapts else None
    exact, hard = logits.astype(np.float64), (logits > thresholds[:, None]) & adapts
    ruled = np.where(hard, exact * (0.3 + exact / 64), exact)
    ruled[exact > limit] = -1e30
    slopes = np.where(hard, 0.3 + 2 * exact / 64, 1.0)
    assert hard.any() == adapts and (limit == NEVER or columns == 1 or (exact > limit).any())
    rules = Negatives(limit, curriculum, scale=64.0)
    shift, sums, found = exponentiate(rows, logits, rules=rules)
    largest = np.maximum(ruled.max(axis=1), -1e29)
    assert shift == pytest.approx(largest, rel=1e-6)
    exponentials = np.exp(ruled - largest[:, None])
    assert sums == pytest.approx(exponentials.sum(axis=1), rel=1e-5)
    assert found == pytest.approx(exponentials * slopes, rel=2e-5, abs=1e-8)


def test_nan_is_not_hidden(rows):
    curriculum = Curriculum(mx.nd.array([0.5]), mx.nd.array([0.1]))
    rules = (None, Negatives(5.0, None, scale=8.0), Negatives(5.0, curriculum, scale=8.0))
    for place, rule in itertools.product((0, 70, 135), rules):
        logits = np.zeros((1, 136), np.float32)
        logits[0, place] = np.nan
        assert np.isnan(exponentiate(rows, logits, rules=rule)[1]).all()


@pytest.mark.parametrize("width", [1, 4, 6, 7, 20])
def test_rows_of_any_width_are_written_back(width):
    """A device writes pieces of rows, whose length divides the width."""
    before = np.random.default_rng(0).normal(size=(9, width)).astype(np.float32)
    chosen = np.array([0, 3, 4, 8])
    with mx.cpu(1):
        rows = DeviceRows(before.copy(), SGD(0.0, 0.0), mx.cpu(1), max_elements=4 * width)
        update(rows, chosen, 1.0, 0.5, width)
    norms = np.linalg.norm(before, axis=1, keepdims=True)
    exact, expected = before / norms, before.copy()
    moved = before - 0.5 * (1 - exact.sum(axis=1, keepdims=True) * exact) / norms
    expected[chosen] = moved[chosen]
    assert rows.export()["centers"] == pytest.approx(expected, abs=1e-5)
    others = np.setdiff1d(np.arange(9), chosen)
    assert np.array_equal(rows.export()["centers"][others], before[others])


def test_snapshots_use_the_same_memory(make_rows, centers):
    rows = make_rows(centers.copy(), Adam(0.0, decoupled=False))
    first = rows.snapshot()
    before = {name: array.copy() for name, array in first.items()}
    update(rows, range(C), np.random.default_rng(5).normal(size=(C, D)))
    assert all(np.array_equal(first[name], before[name]) for name in first)
    second, exported = rows.snapshot(), rows.export()
    for name in first:
        assert np.shares_memory(first[name], second[name])
        assert np.array_equal(second[name], exported[name])
        assert (second[name] != before[name]).any()


@numba.njit
def squares_of(vectors):
    found = np.empty(len(vectors), np.float32)
    for row in range(len(vectors)):
        found[row] = product_of(vectors[row], vectors[row])
    return found


@pytest.mark.parametrize(
    ("width", "first", "count"),
    [(16, 0, 1), (100, 1, 31), (128, 16, 32), (130, 0, 33), (512, 4, 99)],
)
def test_units_of_any_width_at_any_place(width: int, first: int, count: int) -> None:
    """Each number is the product of the vector's and 1 / norm, and nothing beside is written."""
    generator = np.random.default_rng(width)
    vectors = generator.standard_normal((120, width), np.float32)
    rows = np.sort(generator.permutation(120)[:count])
    line = np.full(count * width + 64, 7, np.float32)
    start = -line.ctypes.data % 64 // 4 + first
    units, norms = line[start : start + count * width].reshape(count, width), np.empty(count, "f4")
    host._normalize(vectors, rows, units, norms)
    expected = np.float32(1) / np.sqrt(squares_of(vectors[rows]))
    np.testing.assert_array_equal(norms, expected)
    np.testing.assert_array_equal(units, vectors[rows] * expected[:, None])
    assert (line[:start] == 7).all() and (line[start + count * width :] == 7).all()
