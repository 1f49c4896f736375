"""The row kernels of the host and the operators of a device against plain NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from partial_fc.kernels import SGD, DeviceRows, HostRows
from runtime.mxnet import mx

C, S, D, B = 50, 13, 20, 6


def device_rows(centers):
    return DeviceRows(centers, mx.cpu(), max_elements=11 * D)


@pytest.fixture(params=[HostRows, device_rows], ids=["host", "device"])
def make_rows(request):
    return request.param


@pytest.fixture
def centers():
    return np.random.default_rng(0).normal(size=(C, D)).astype(np.float32)


@pytest.fixture
def sampled():
    return np.sort(np.random.default_rng(1).choice(C, S, replace=False))


def test_gather_gives_unit_vectors_and_inverse_norms(make_rows, centers, sampled):
    units = mx.nd.empty((S, D))
    inverse = make_rows(centers.copy()).gather(sampled, units)
    inverse = inverse if isinstance(inverse, np.ndarray) else inverse.asnumpy()
    norms = np.linalg.norm(centers[sampled].astype(np.float64), axis=1)
    assert inverse == pytest.approx(1 / norms, rel=1e-5)
    assert units.asnumpy() == pytest.approx(centers[sampled] / norms[:, None], abs=1e-6)


def test_a_zero_center_stays_finite(make_rows, centers):
    centers[4] = 0.0
    units = mx.nd.empty((1, D))
    make_rows(centers).gather(np.array([4]), units)
    assert np.array_equal(units.asnumpy(), np.zeros((1, D)))


def test_update_moves_sampled_rows_only(make_rows, centers, sampled):
    step = SGD(lr=0.1, momentum=0.9, weight_decay=0.01)
    gradient = np.random.default_rng(2).normal(size=(S, D)).astype(np.float32)
    rows = make_rows(centers.copy())
    expected, momenta = centers.astype(np.float64), np.zeros((C, D))
    for _ in range(2):
        units = mx.nd.empty((S, D))
        inverse = rows.gather(sampled, units)
        rows.update(sampled, units, inverse, mx.nd.array(gradient), step)

        norms = np.linalg.norm(expected[sampled], axis=1, keepdims=True)
        exact = expected[sampled] / norms
        tangent = (gradient - (gradient * exact).sum(axis=1, keepdims=True) * exact) / norms
        momenta[sampled] = 0.9 * momenta[sampled] - 0.1 * (tangent + 0.01 * expected[sampled])
        expected[sampled] += momenta[sampled]
    actual, actual_momenta = rows.export()
    assert actual == pytest.approx(expected, abs=1e-5)
    assert actual_momenta == pytest.approx(momenta, abs=1e-5)
    untouched = np.setdiff1d(np.arange(C), sampled)
    assert np.array_equal(actual[untouched], centers[untouched])
    assert not actual_momenta[untouched].any()


@pytest.mark.parametrize("columns", [1, 15, 16, 1000])
@pytest.mark.parametrize("spread", [1.0, 60.0])
def test_maxima_and_exponentials(make_rows, centers, columns, spread):
    logits = np.random.default_rng(3).normal(size=(B, columns)).astype(np.float32) * spread
    rows, array = make_rows(centers), mx.nd.array(logits)
    maxima = rows.maxima(array)
    assert np.array_equal(maxima.asnumpy(), logits.max(axis=1))
    sums = rows.exponentiate(array, maxima + 1.5)
    exact = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True) - 1.5)
    assert array.asnumpy() == pytest.approx(exact, rel=2e-5, abs=1e-37)
    assert sums.asnumpy() == pytest.approx(exact.sum(axis=1), rel=1e-5)


def test_exponentials_of_very_small_logits_are_zero(make_rows, centers):
    array = mx.nd.array([[-1e30, -1000.0, 0.0]])
    sums = make_rows(centers).exponentiate(array, mx.nd.array([0.0]))
    assert array.asnumpy().tolist() == [[0.0, 0.0, 1.0]] and sums.asscalar() == 1.0


def test_nan_is_not_hidden(make_rows, centers):
    array = mx.nd.array([[0.0, np.nan, 1.0]])
    assert np.isnan(make_rows(centers).exponentiate(array, mx.nd.array([1.0])).asscalar())


def test_columns_are_read_and_replaced_in_place(make_rows, centers):
    values = np.arange(B * S, dtype=np.float32).reshape(B, S)
    matrix, columns = mx.nd.array(values), np.array([0, 3, 12, 0, 5, 5])
    rows = make_rows(centers)
    assert rows.get_columns(matrix, columns).asnumpy().tolist() == [
        values[b, column] for b, column in enumerate(columns)
    ]
    rows.set_columns(matrix, columns, mx.nd.full((B,), -1.0))
    values[np.arange(B), columns] = -1.0
    assert np.array_equal(matrix.asnumpy(), values)
