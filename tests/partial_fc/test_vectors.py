"""Rows of features on the host and on a device, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from partial_fc.vectors import DeviceVectors, HostVectors
from runtime.mxnet import mx


@pytest.fixture(params=[HostVectors, DeviceVectors], ids=["host", "device"])
def vectors(request):
    return request.param()


# More rows than columns and the other way round: a loop over the wrong axis ends too early.
@pytest.fixture(params=[(7, 3), (3, 7), (1, 1), (40, 2)])
def matrix(request):
    return np.random.default_rng(0).normal(size=request.param)


def unit(matrix):
    return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


def test_rows_become_unit_vectors(vectors, matrix) -> None:
    units, inverse_norms = vectors.normalize(mx.nd.array(matrix))
    assert units.asnumpy() == pytest.approx(unit(matrix), abs=1e-6)
    assert inverse_norms.shape == (len(matrix), 1)
    assert 1 / inverse_norms.asnumpy()[:, 0] == pytest.approx(np.linalg.norm(matrix, axis=1))


def test_a_row_of_zeros_stays_one(vectors) -> None:
    units, inverse_norms = vectors.normalize(mx.nd.zeros((2, 3)))
    assert not units.asnumpy().any() and np.isfinite(inverse_norms.asnumpy()).all()


def test_rows_are_multiplied_by_their_factors(vectors, matrix) -> None:
    factors = np.arange(1.0, len(matrix) + 1)[:, None]
    product = vectors.multiply_rows(mx.nd.array(matrix), mx.nd.array(factors))
    assert product.asnumpy() == pytest.approx(matrix * factors, rel=1e-6)


def test_gradients_of_unit_vectors_become_those_of_the_vectors(vectors, matrix) -> None:
    """Of f(x / |x|): what points along x makes no difference to it."""
    gradient = np.random.default_rng(1).normal(size=matrix.shape)
    units, inverse = unit(matrix), 1 / np.linalg.norm(matrix, axis=1, keepdims=True)
    found = vectors.project(*(mx.nd.array(array) for array in (gradient, units, inverse)))
    radial = (gradient * units).sum(axis=1, keepdims=True)
    assert found.asnumpy() == pytest.approx((gradient - radial * units) * inverse, abs=1e-5)
