"""The row kernels of the host and the operators of a device against plain NumPy in float64."""

from typing import Any

import numpy as np
import pytest

from partial_fc.initial import zeros
from partial_fc.optimizers import SGD, Adam
from partial_fc.rows import device as device_module
from partial_fc.rows.device import DeviceRows
from partial_fc.rows.host import HostRows
from partial_fc.rows.interface import NEVER, Curriculum, Logits, Negatives
from partial_fc.shard import Sample
from runtime.errors import ConfigError
from runtime.mxnet import mx
from tests.partial_fc.reference_head import reference_update, zero_states

# Vectors of two times 64 and a rest.
C, S, D, B = 50, 13, 140, 6
SGD_09 = SGD(momentum=0.9, weight_decay=0.01)
ADAM = Adam(0.01, decoupled=False)


@pytest.fixture(params=["host", "device", "one block"])
def make_rows(request):
    def make(centers: Any, optimizer: Any = SGD_09) -> Any:
        if request.param == "host":
            return HostRows(centers, optimizer)
        # Blocks of eleven rows.
        most = {"max_elements": 11 * centers.shape[1]} if request.param == "device" else {}
        return DeviceRows(centers, optimizer, mx.cpu(1), **most)

    # The arrays of a test are made where the rows are: MXNet does not mind mixed contexts.
    with mx.cpu() if request.param == "host" else mx.cpu(1):
        yield make


def drawn(width: int = D) -> Any:
    return np.random.default_rng(0).normal(size=(C, width)).astype(np.float32)


@pytest.fixture
def rows(make_rows):
    return make_rows(drawn())


def gather(rows, chosen, units, gradient):
    sample = Sample(np.asarray(chosen), np.zeros(1, np.int64), np.ones(1, bool))
    return rows.gather(rows.place(sample), slice(0, len(chosen)), units, gradient)


def gathered(rows, chosen):
    """The unit vectors of some rows, the array for their gradient, and what ``update`` needs."""
    shape = len(chosen), *rows.row_shapes["centers"]
    units, gradient = mx.nd.empty(shape), mx.nd.empty(shape)
    return units, gradient, gather(rows, chosen, units, gradient)


def update(rows, chosen, slope, lr=0.1):
    _, gradient, what = gathered(rows, chosen)
    gradient[:] = slope
    rows.update(what, lr)


def test_a_zero_center_stays_finite(make_rows):
    rows = make_rows(np.zeros((C, D), np.float32))
    assert not gathered(rows, [4])[0].asnumpy().any()
    update(rows, [4], 0.0)
    assert np.array_equal(rows.export()["centers"][4], np.zeros(D))


@pytest.mark.parametrize(("width", "optimizer"), [
    *((D, optimizer) for optimizer in (SGD_09, ADAM, Adam(0.2, decoupled=True))),
    # A device writes pieces of rows, whose length divides the width.
    *((width, SGD_09) for width in (1, 4, 6, 7, 20)),
])
def test_updates_move_sampled_rows_only(make_rows, width, optimizer):
    centers, sampled = drawn(width), np.sort(np.random.default_rng(1).permutation(C)[:S])
    gradient = np.random.default_rng(2).normal(size=(S, width)).astype(np.float32)
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
    actual, untouched = rows.export(), np.setdiff1d(np.arange(C), sampled)
    assert actual.keys() == expected.keys()
    for name, state in optimizer.states.items():
        assert actual[name] == pytest.approx(expected[name], abs=2e-5)
        assert actual[name].dtype == state.dtype and not actual[name][untouched].any()
    assert actual["centers"] == pytest.approx(expected["centers"], abs=2e-5)
    assert np.array_equal(actual["centers"][untouched], centers[untouched])


@pytest.mark.parametrize("chosen", [range(5), range(C)], ids=["sampled", "all"])
def test_a_step_without_its_update_leaves_no_trace(make_rows, chosen):
    """As with --on-nan skip; the arrays of the step before are used again."""
    slope = np.random.default_rng(2).normal(size=(len(chosen), D))
    rows, expected = make_rows(drawn()), make_rows(drawn())
    units, gradient, _ = gathered(rows, chosen)
    what = gather(rows, chosen, units, gradient)
    gradient[:] = slope
    rows.update(what, 0.1)
    update(expected, chosen, slope)
    assert np.array_equal(rows.export()["centers"], expected.export()["centers"])
    assert not np.array_equal(rows.export()["centers"], drawn())


NONE = Negatives(NEVER, None, scale=8.0)


def exponentiate(rows, matrix, sample=None, targets=None, rules=NONE):
    """Shifts, sums and what is left of a matrix [B, columns]; unless given, targets are elsewhere.

    On the host the matrix is in blocks of eleven columns, or of twice 64 and two.
    """
    matrix = np.asarray(matrix, dtype=np.float32)
    batch, columns = matrix.shape
    height = min(130 if columns > 130 else 11, columns) if isinstance(rows, HostRows) else columns
    logits = Logits(mx.nd.zeros((matrix.size,)), batch, columns, height)
    for start, block in zip(range(0, columns, height), logits.blocks()):
        block[:] = matrix[:, start : start + height]
    if sample is None:
        sample = Sample(np.arange(columns) % C, np.zeros(batch, int), np.zeros(batch, bool))
        targets = np.zeros(batch)
    found = rows.exponentiate(logits, rows.place(sample), mx.nd.array(targets), rules)
    left = np.concatenate([block.asnumpy() for block in logits.blocks()], axis=1)
    return *(array.asnumpy() for array in found), left


@pytest.mark.parametrize(("columns", "part_bytes"), [
    (1, 2**27), (16, 1), (37, 4 * 37 * 4), (65, 2**27), (200, 1), (1000, 2**27),
])
@pytest.mark.parametrize(
    ("limit", "adapts"), [(None, False), (10.0, True), (NEVER, True), (10.0, False)]
)
def test_exponentials(rows, columns, limit, adapts, part_bytes, monkeypatch):
    """Logits above the limit are left out, x above its threshold becomes x · (t + x / scale).

    Of targets on this rank the logit with the margin counts for the shift, and not in the sum.
    """
    monkeypatch.setattr(device_module, "PART_BYTES", part_bytes)
    generator = np.random.default_rng(4)
    logits = generator.normal(size=(B, columns)).astype(np.float32) * (60 if limit is None else 8)
    logits[0, 0] = -1e30
    thresholds = generator.normal(size=B).astype(np.float32) * 4
    thresholds[1] = 1e30
    places, local = generator.integers(columns, size=B), np.arange(B) % 2 == 1
    # Any number where the class belongs to another rank; one target is the largest of its sample.
    targets = np.where(local, generator.normal(size=B) * 4, np.nan).astype(np.float32)
    targets[3] = 300
    exact, hard = logits.astype(np.float64), (logits > thresholds[:, None]) & adapts
    ruled = np.where(hard, exact * (0.3 + exact / 64), exact)
    ruled[exact > (limit or NEVER)] = -np.inf
    ruled[local, places[local]] = -np.inf
    slopes = np.where(hard, 0.3 + 2 * exact / 64, 1.0)
    largest = np.maximum(ruled.max(axis=1), np.where(local, targets, -1e29))
    exponentials = np.exp(ruled - largest[:, None])
    assert hard.any() == adapts and (limit != 10 or columns == 1 or (exact > limit).any())
    curriculum = Curriculum(mx.nd.array(thresholds / 64), mx.nd.array([0.3])) if adapts else None
    rules = NONE if limit is None else Negatives(limit, curriculum, scale=64.0)
    sample = Sample(np.arange(columns) % C, places, local)
    shift, sums, found = exponentiate(rows, logits, sample, targets, rules)
    assert shift == pytest.approx(largest, rel=0 if rules is NONE else 1e-6, abs=0)
    assert sums == pytest.approx(exponentials.sum(axis=1), rel=1e-5)
    expected = exponentials * slopes
    assert found == pytest.approx(expected, rel=2e-5, abs=1e-37 if rules is NONE else 1e-8)
    assert not found[local, places[local]].any()


def test_the_largest_logit_is_found_wherever_it_stands_and_nan_is_not_hidden(rows):
    for columns in (16, 65, 200):
        shift, _, _ = exponentiate(rows, np.eye(columns) - 2.0)
        assert shift.tolist() == [-1.0] * columns
    curriculum = Curriculum(mx.nd.array([0.0625]), mx.nd.array([0.1]))
    for rules in (NONE, Negatives(5.0, None, scale=8.0), Negatives(5.0, curriculum, scale=8.0)):
        for place in (0, 70, 135):
            logits = np.zeros((1, 136), np.float32)
            logits[0, place] = np.nan
            assert np.isnan(exponentiate(rows, logits, rules=rules)[1]).all()


def test_snapshots_use_the_same_memory(make_rows):
    rows = make_rows(drawn(), ADAM)
    first = rows.snapshot()
    before = {name: array.copy() for name, array in first.items()}
    update(rows, range(C), np.random.default_rng(5).normal(size=(C, D)))
    assert all(np.array_equal(first[name], before[name]) for name in first)
    second, exported = rows.snapshot(), rows.export()
    for name in first:
        assert np.shares_memory(first[name], second[name])
        assert np.array_equal(second[name], exported[name])
        assert (second[name] != before[name]).any()


def test_rows_are_loaded_in_pieces(make_rows):
    """As a checkpoint of other ranks has them, which end and begin within blocks."""
    rows, wanted = make_rows(drawn(), ADAM), {}
    for seed, (name, array) in enumerate(rows.export().items()):
        wanted[name] = np.random.default_rng(seed).uniform(1, 99, array.shape).astype(array.dtype)
        for first, last in ((15, 41), (0, 15), (41, C)):
            rows.load(name, first, wanted[name][first:last])
    found = rows.export()
    assert len(found) == 4 and all(np.array_equal(found[name], wanted[name]) for name in found)


def test_memory_that_cannot_be_had() -> None:
    # The number of classes in property may be anything.
    for shape in ((1 << 24, 1 << 22), (1 << 55,)):
        with pytest.raises(ConfigError, match=f"{shape[0]:,} rows .* number of classes .property"):
            zeros(shape, np.float32)
