"""The row kernels of the host and the operators of a device against plain NumPy in float64."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from partial_fc.negatives import NEVER, Curriculum, Negatives
from partial_fc.optimizers import SGD, Adam
from partial_fc.rows import device as device_module
from partial_fc.rows.device import DeviceRows
from partial_fc.rows.host import HostRows
from partial_fc.rows.interface import Logits
from partial_fc.shard import Sample
from runtime.mxnet import mx
from tests.support.reference_optimizers import reference_update, zero_states

# Vectors of two times 64 and a rest.
C, S, D, B = 50, 13, 140, 6


SGD_09 = SGD(momentum=0.9, weight_decay=0.01)


def host_rows(centers, optimizer=SGD_09):
    return HostRows(centers, optimizer)


def device_rows(centers, optimizer=SGD_09):
    # Blocks of eleven rows.
    return DeviceRows(centers, optimizer, mx.cpu(1), max_elements=11 * D)


def device_rows_in_one_block(centers, optimizer=SGD_09):
    return DeviceRows(centers, optimizer, mx.cpu(1))


MAKERS = {"host": host_rows, "device": device_rows, "one block": device_rows_in_one_block}


@pytest.fixture(params=list(MAKERS.values()), ids=list(MAKERS))
def make_rows(request):
    # The arrays of a test are made where the rows are: MXNet does not mind mixed contexts.
    with mx.cpu() if request.param is host_rows else mx.cpu(1):
        yield request.param


@pytest.fixture
def centers():
    return np.random.default_rng(0).normal(size=(C, D)).astype(np.float32)


@pytest.fixture
def sampled():
    return np.sort(np.random.default_rng(1).choice(C, S, replace=False))


def placed(rows, chosen, targets=(0,)):
    targets = np.array(targets)
    return rows.place(Sample(np.asarray(chosen), targets, np.ones(targets.size, dtype=bool)))


def gather(rows, chosen, units, gradient):
    """All rows in one block."""
    return rows.gather(placed(rows, chosen), slice(0, len(chosen)), units, gradient)


def gathered(rows, chosen):
    """The unit vectors of some rows, the array for their gradient, and what ``update`` needs."""
    units, gradient = mx.nd.empty((len(chosen), D)), mx.nd.empty((len(chosen), D))
    return units, gradient, gather(rows, chosen, units, gradient)


def as_logits(rows, matrix):
    """A matrix [B, columns] in blocks: on the host of eleven columns, or twice 64 and two."""
    matrix = np.asarray(matrix, dtype=np.float32)
    batch, columns = matrix.shape
    height = min(130 if columns > 130 else 11, columns) if isinstance(rows, HostRows) else columns
    logits = Logits(mx.nd.zeros((matrix.size,)), batch, columns, height)
    for start, block in zip(range(0, columns, height), logits.blocks()):
        block[:] = matrix[:, start : start + height]
    return logits


def as_matrix(logits):
    return np.concatenate([block.asnumpy() for block in logits.blocks()], axis=1)


@pytest.mark.parametrize("chosen", [[3], [0, 10, 11, 49], range(C)])
def test_gather_gives_unit_vectors(make_rows, centers, chosen):
    units, _, _ = gathered(make_rows(centers.copy()), chosen)
    norms = np.linalg.norm(centers[chosen].astype(np.float64), axis=1)
    assert units.asnumpy() == pytest.approx(centers[chosen] / norms[:, None], abs=1e-6)


def test_a_zero_center_stays_finite(make_rows, centers):
    centers[4] = 0.0
    rows = make_rows(centers)
    units, gradient, what = gathered(rows, [4])
    assert np.array_equal(units.asnumpy(), np.zeros((1, D)))
    gradient[:] = 0.0
    rows.update(what, 0.1)
    assert np.array_equal(rows.export()["centers"][4], np.zeros(D))


@pytest.mark.parametrize(
    "optimizer",
    [SGD_09, Adam(0.01, decoupled=False), Adam(0.2, decoupled=True)],
    ids=["sgd", "adam", "adamw"],
)
def test_updates_move_sampled_rows_only(make_rows, centers, sampled, optimizer):
    gradient = np.random.default_rng(2).normal(size=(S, D)).astype(np.float32)
    rows = make_rows(centers.copy(), optimizer)
    expected = zero_states(optimizer, centers)
    # The last sample is a part of the others, so that rows have seen different numbers of updates.
    for chosen in (sampled, sampled, sampled[::3]):
        slope = gradient[: chosen.size]
        _, array, what = gathered(rows, chosen)
        array[:] = slope
        rows.update(what, 0.1)

        norms = np.linalg.norm(expected["centers"][chosen], axis=1, keepdims=True)
        exact = expected["centers"][chosen] / norms
        tangent = (slope - (slope * exact).sum(axis=1, keepdims=True) * exact) / norms
        reference_update(optimizer, expected, chosen, tangent, 0.1)
    actual = rows.export()
    assert actual.keys() == expected.keys()
    untouched = np.setdiff1d(np.arange(C), sampled)
    for name, state in optimizer.states.items():
        assert actual[name] == pytest.approx(expected[name], abs=2e-5)
        assert actual[name].dtype == state.dtype
        assert not actual[name][untouched].any()
    assert actual["centers"] == pytest.approx(expected["centers"], abs=2e-5)
    assert np.array_equal(actual["centers"][untouched], centers[untouched])


@pytest.mark.parametrize("chosen", [range(5), range(C)], ids=["sampled", "all"])
def test_a_step_without_its_update_leaves_no_trace(make_rows, centers, chosen):
    """As with --on-nan skip; the arrays of the step before are used again."""
    rows, slope = make_rows(centers.copy()), np.random.default_rng(2).normal(size=(len(chosen), D))
    units, array, _ = gathered(rows, chosen)
    what = gather(rows, chosen, units, array)
    array[:] = slope
    rows.update(what, 0.1)
    expected = make_rows(centers.copy())
    _, array, what = gathered(expected, chosen)
    array[:] = slope
    expected.update(what, 0.1)
    assert np.array_equal(rows.export()["centers"], expected.export()["centers"])
    assert not np.array_equal(rows.export()["centers"], centers)


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_row_that_is_sampled_late_steps_as_far_as_one_sampled_early(make_rows, decoupled):
    """By hand: the first step of Adam is the learning rate in every direction of the gradient."""
    rows = make_rows(np.eye(3, 4, dtype=np.float32), Adam(0.0, decoupled))
    units = mx.nd.empty((1, 4))
    for row in [0] * 20 + [2]:
        gradient = mx.nd.array([[0.0, 0.0, 0.0, 0.5]])
        rows.update(gather(rows, [row], units, gradient), 0.01)
    exported = rows.export()
    assert exported["centers"][2] == pytest.approx([0.0, 0.0, 1.0, -0.01], abs=1e-6)
    assert exported["step_counts"].tolist() == [20, 0, 1]


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
    return shift.asnumpy(), sums.asnumpy(), as_matrix(array)


@pytest.mark.parametrize("columns", [1, 15, 16, 63, 64, 65, 1000])
@pytest.mark.parametrize("spread", [1.0, 60.0])
def test_exponentials(make_rows, centers, columns, spread):
    logits = np.random.default_rng(3).normal(size=(B, columns)).astype(np.float32) * spread
    shift, sums, found = exponentiate(make_rows(centers), logits)
    assert np.array_equal(shift, logits.max(axis=1))
    exact = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    assert found == pytest.approx(exact, rel=2e-5, abs=1e-37)
    assert sums == pytest.approx(exact.sum(axis=1), rel=1e-5)


@pytest.mark.parametrize("columns", [16, 37, 200])
def test_the_largest_logit_is_found_wherever_it_stands(make_rows, centers, columns):
    # One row for each place.
    logits = -2.0 + np.eye(columns, dtype=np.float32)
    shift, _, _ = exponentiate(make_rows(centers), logits)
    assert shift.tolist() == [-1.0] * columns


def test_a_target_counts_with_its_margin_and_not_among_the_negatives(make_rows, centers):
    """Its own logit is the largest of the first sample, that with the margin of the second."""
    logits = [[1.0, 9.0, 2.0, 1.5], [1.0, 2.0, -3.0, 0.0], [4.0, 3.0, 2.0, 1.0]]
    targets = [1.25, 5.0, np.nan]
    shift, sums, found = exponentiate(make_rows(centers), logits, [1, 2, -1], targets)
    assert shift.tolist() == [2.0, 5.0, 4.0]
    expected = np.exp(np.array([[-1, -np.inf, 0, -0.5], [-4, -3, -np.inf, -5], [0, -1, -2, -3]]))
    assert found == pytest.approx(expected, rel=1e-5)
    assert found[0, 1] == found[1, 2] == 0.0
    assert sums == pytest.approx(expected.sum(axis=1), rel=1e-6)


@pytest.mark.parametrize("rules", [None, Negatives(5.0, None, scale=8.0)])
def test_a_rank_without_negatives_has_no_weight(make_rows, centers, rules):
    """Of the first sample it has the target alone, of the second nothing that is not left out."""
    rows = make_rows(centers)
    shift, sums, found = exponentiate(rows, [[7.0], [-1e30]], [0, -1], [6.0, np.nan], rules)
    assert shift[0] == 6.0 and shift[1] < -1e28
    assert sums.tolist() == [0.0, 0.0] and found.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("columns", [1, 37, 200])
@pytest.mark.parametrize("limit", [10.0, NEVER])
@pytest.mark.parametrize("part_bytes", [2**27, 4 * 37 * 4, 1])
def test_rules_for_negatives(make_rows, centers, columns, limit, part_bytes, monkeypatch):
    """Logits above the limit are left out, x above its threshold becomes x · (t + x / scale)."""
    monkeypatch.setattr(device_module, "PART_BYTES", part_bytes)
    generator = np.random.default_rng(4)
    logits = generator.normal(size=(B, columns)).astype(np.float32) * 8
    logits[0, 0] = -1e30
    thresholds = generator.normal(size=B).astype(np.float32) * 4
    thresholds[1] = 1e30
    curriculum = Curriculum(mx.nd.array(thresholds), mx.nd.array([0.3]))
    negatives = Negatives(limit, curriculum, scale=64.0)

    exact, hard = logits.astype(np.float64), logits > thresholds[:, None]
    ruled = np.where(hard, exact * (0.3 + exact / 64), exact)
    ruled[exact > limit] = -1e30
    slopes = np.where(hard, 0.3 + 2 * exact / 64, 1.0)
    assert hard.any() and (limit == NEVER or columns == 1 or (exact > limit).any())
    shift, sums, found = exponentiate(make_rows(centers), logits, rules=negatives)
    largest = np.maximum(ruled.max(axis=1), -1e29)
    assert shift == pytest.approx(largest, rel=1e-6)
    exponentials = np.exp(ruled - largest[:, None])
    assert sums == pytest.approx(exponentials.sum(axis=1), rel=1e-5)
    assert found == pytest.approx(exponentials * slopes, rel=2e-5, abs=1e-8)


def test_a_filter_without_a_curriculum(make_rows, centers):
    logits, negatives = [[0.0, 5.5, 1.0], [5.0, 4.0, -9.0]], Negatives(5.0, None, scale=8.0)
    shift, sums, found = exponentiate(make_rows(centers), logits, rules=negatives)
    assert shift.tolist() == [1.0, 5.0]
    expected = np.exp([[-1.0, -np.inf, 0.0], [0.0, -1.0, -14.0]])
    assert found == pytest.approx(expected, rel=1e-5)
    assert sums == pytest.approx(expected.sum(axis=1), rel=1e-6)


@pytest.mark.parametrize("place", [0, 70, 135])
@pytest.mark.parametrize("rule", ["none", "filter", "curriculum"])
def test_nan_is_not_hidden(make_rows, centers, place, rule):
    logits = np.zeros((1, 136), np.float32)
    logits[0, place] = np.nan
    curriculum = Curriculum(mx.nd.array([0.5]), mx.nd.array([0.1]))
    rules = {
        "none": None,
        "filter": Negatives(5.0, None, scale=8.0),
        "curriculum": Negatives(5.0, curriculum, scale=8.0),
    }
    _, sums, _ = exponentiate(make_rows(centers), logits, rules=rules[rule])
    assert np.isnan(sums).all()


def test_exponentials_of_very_small_logits_are_zero(make_rows, centers):
    _, sums, found = exponentiate(make_rows(centers), [[-1e30, -1000.0, -100.0, 0.0]])
    # The third is 4e-44, which MXNet on a device may keep.
    first, second, third, last = found[0].tolist()
    assert [first, second] == [0.0, 0.0] and third < 4e-44 and last == sums[0] == 1.0


def test_targets_are_read_and_those_of_this_rank_replaced_in_place(make_rows, centers, sampled):
    values = np.arange(B * S, dtype=np.float32).reshape(B, S)
    rows, columns = make_rows(centers), np.array([0, 3, 12, 0, 5, 5])
    matrix, local = as_logits(rows, values), np.array([1, 1, 1, 0, 1, 0], bool)
    where = rows.place(Sample(sampled, columns, local))
    assert rows.get_targets(matrix, where).asnumpy().tolist() == [
        values[b, column] for b, column in enumerate(columns)
    ]
    rows.set_targets(matrix, where, mx.nd.array([-1.0, -2.0, -3.0, np.nan, -4.0, np.nan]))
    values[np.flatnonzero(local), columns[local]] = [-1.0, -2.0, -3.0, -4.0]
    assert np.array_equal(as_matrix(matrix), values)


def test_a_sample_says_which_targets_are_local(make_rows, centers, sampled):
    local = np.array([True, False, False, True])
    sample = Sample(sampled, np.zeros(4, dtype=np.int64), local)
    found = make_rows(centers).place(sample).local_B
    assert found.dtype == np.float32 and found.context == mx.current_context()
    assert found.asnumpy().tolist() == [1.0, 0.0, 0.0, 1.0]


def test_a_sample_is_not_changed_by_those_that_follow(make_rows, centers, sampled):
    """They may be placed before the device has read it."""
    rows = make_rows(centers)
    matrix = as_logits(rows, np.arange(3 * S).reshape(3, S))
    samples = [placed(rows, sampled, [shift, 2, 4]) for shift in range(8)]
    found = [rows.get_targets(matrix, sample).asnumpy().tolist() for sample in samples]
    assert found == [[shift, S + 2, 2 * S + 4] for shift in range(8)]


def test_samples_of_any_size_share_page_locked_memory(centers, sampled):
    """With many positives the samples differ in size, and such memory is dear to allocate."""
    rows = device_rows(centers)
    for size in range(1, S + 1):
        placed(rows, sampled[:size])
    assert len(rows._upload._buffers) == 1


@pytest.mark.parametrize("optimizer", [SGD_09, Adam(0.01, decoupled=False)], ids=["sgd", "adam"])
def test_a_device_copies_no_rows_if_all_are_sampled(centers, optimizer, monkeypatch):
    monkeypatch.setattr(mx.nd, "take", None)
    monkeypatch.setattr(device_module, "invoke", None)
    with mx.cpu(1):
        rows = device_rows_in_one_block(centers.copy(), optimizer)
        _, gradient, what = gathered(rows, range(C))
        gradient[:] = np.random.default_rng(5).normal(size=(C, D))
        rows.update(what, 0.1)
    assert (rows.export()["centers"] != centers).all()


@pytest.mark.parametrize("width", [1, 2, 3, 4, 6, 7, 20])
def test_rows_of_any_width_are_written_back(width):
    """A device writes pieces of rows, whose length divides the width."""
    before = np.random.default_rng(0).normal(size=(9, width)).astype(np.float32)
    with mx.cpu(1):
        rows = DeviceRows(before.copy(), SGD(0.0, 0.0), mx.cpu(1), max_elements=4 * width)
        chosen = np.array([0, 3, 4, 8])
        units, gradient = mx.nd.empty((4, width)), mx.nd.ones((4, width))
        rows.update(gather(rows, chosen, units, gradient), 0.5)
    after, norms = rows.export()["centers"], np.linalg.norm(before, axis=1, keepdims=True)
    exact = before / norms
    expected = before - 0.5 * (1 - exact.sum(axis=1, keepdims=True) * exact) / norms
    assert after[chosen] == pytest.approx(expected[chosen], abs=1e-5)
    others = np.setdiff1d(np.arange(9), chosen)
    assert np.array_equal(after[others], before[others])


def test_snapshots_use_the_same_memory(make_rows, centers):
    rows = make_rows(centers.copy(), Adam(0.0, decoupled=False))
    first = rows.snapshot()
    before = {name: array.copy() for name, array in first.items()}
    _, gradient, what = gathered(rows, range(C))
    gradient[:] = np.random.default_rng(5).normal(size=(C, D))
    rows.update(what, 0.1)
    assert all(np.array_equal(first[name], before[name]) for name in first)
    second = rows.snapshot()
    assert all(np.shares_memory(first[name], second[name]) for name in first)
    exported = rows.export()
    assert all(np.array_equal(second[name], exported[name]) for name in exported)
    assert all((second[name] != before[name]).any() for name in second)


@pytest.fixture
def rows(make_rows, centers):
    """For the passes over features, whatever the centers are."""
    return make_rows(centers)


# More rows than columns and the other way round: a loop over the wrong axis ends too early.
@pytest.fixture(params=[(7, 3), (3, 7), (1, 1), (40, 2)])
def matrix(request):
    return np.random.default_rng(0).normal(size=request.param)


def unit(matrix):
    return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


def test_rows_become_unit_vectors(rows, matrix) -> None:
    units, inverse_norms = rows.normalize(mx.nd.array(matrix))
    assert units.asnumpy() == pytest.approx(unit(matrix), abs=1e-6)
    assert inverse_norms.shape == (len(matrix), 1)
    assert 1 / inverse_norms.asnumpy()[:, 0] == pytest.approx(np.linalg.norm(matrix, axis=1))


def test_a_row_of_zeros_stays_one(rows) -> None:
    units, inverse_norms = rows.normalize(mx.nd.zeros((2, 3)))
    assert not units.asnumpy().any() and np.isfinite(inverse_norms.asnumpy()).all()


def test_rows_are_multiplied_by_their_factors(rows, matrix) -> None:
    factors = np.arange(1.0, len(matrix) + 1)[:, None]
    product = rows.multiply_rows(mx.nd.array(matrix), mx.nd.array(factors))
    assert product.asnumpy() == pytest.approx(matrix * factors, rel=1e-6)


def test_shares_and_units_are_multiplied_by_the_factors_of_their_rows(rows, matrix) -> None:
    factors = np.arange(1.0, len(matrix) + 1)[:, None]
    shares, units = mx.nd.array(matrix[None]), mx.nd.array(3 * matrix)
    total, scaled = rows.multiply_shares(shares, units, mx.nd.array(factors))
    assert total.asnumpy() == pytest.approx(matrix * factors, rel=1e-6)
    assert scaled.asnumpy() == pytest.approx(3 * matrix * factors, rel=1e-6)


def test_gradients_of_unit_vectors_become_those_of_the_vectors(rows, matrix) -> None:
    """Of f(x / |x|): what points along x makes no difference to it."""
    gradient = np.random.default_rng(1).normal(size=matrix.shape)
    units, inverse = unit(matrix), 1 / np.linalg.norm(matrix, axis=1, keepdims=True)
    found = rows.project(*(mx.nd.array(array) for array in (gradient, units, inverse)))
    radial = (gradient * units).sum(axis=1, keepdims=True)
    assert found.asnumpy() == pytest.approx((gradient - radial * units) * inverse, abs=1e-5)


# With one thread for operators a gather would come behind the update before it in any case.
GATHER_BEHIND_UPDATE = """
import time
import numpy as np
from partial_fc.rows.host import HostRows
from partial_fc.optimizers import SGD
from partial_fc.shard import Sample
from runtime.engine import submit
from runtime.ndarray import new_array

centers = np.eye(4, dtype=np.float32)
rows = HostRows(centers, SGD(0.9, 0.0))
sample = Sample(np.arange(4), np.zeros(1, np.int64), np.ones(1, bool))
units = new_array(4, 4)

def gather():
    rows.gather(rows.place(sample), slice(0, 4), units, new_array(4, 4))
    return units.asnumpy()

# Kernels are loaded by their first call.
gather()
submit(lambda: (time.sleep(0.5), centers.fill(3)), [], [rows._order])
print(*np.unique(gather()))
"""


def test_rows_are_gathered_behind_the_update_before() -> None:
    environment = {**os.environ, "MXNET_CPU_WORKER_NTHREADS": "2"}
    program = [sys.executable, "-c", GATHER_BEHIND_UPDATE]
    ended = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("0.5\n", "")
