"""The small passes of the head over features: normalize, multiply rows, project a gradient.

They touch B × D numbers only, but MXNet's broadcasting operators take some 3 ms each for 256 × 512
numbers on a CPU, and a step has six of them: a tenth of its time. Hence kernels on the host here
too, with the operators for devices beside them.

Shapes: b batch of a rank, B global batch, D embedding.
"""

from __future__ import annotations

from typing import Any, Protocol

import numba
import numpy as np

from runtime.compiled import parallel_kernel
from runtime.mxnet import mx
from runtime.ndarray import memory

SMALLEST_NORM = 1e-12


class Vectors(Protocol):
    """Passes over matrices whose rows are features or their gradients, NDArrays float32."""

    def normalize(self, features_bD: Any) -> tuple[Any, Any]:
        """The unit vectors [b, D], and 1 / norms [b, 1]."""

    def multiply_rows(self, matrix_BD: Any, factors_B1: Any) -> Any:
        """Each row times its factor."""

    def project(self, gradient_bD: Any, units_bD: Any, inverse_norms_b1: Any) -> Any:
        """The gradient with respect to features, from that with respect to their unit vectors."""


class HostVectors:
    """Vectors in the host's memory, with Numba kernels."""

    def normalize(self, features_bD: Any) -> tuple[Any, Any]:
        """See ``Vectors.normalize``."""
        units_bD = mx.nd.empty(features_bD.shape)
        inverse_norms_b1 = mx.nd.empty((features_bD.shape[0], 1))
        _normalize(memory(features_bD), memory(units_bD), memory(inverse_norms_b1))
        return units_bD, inverse_norms_b1

    def multiply_rows(self, matrix_BD: Any, factors_B1: Any) -> Any:
        """See ``Vectors.multiply_rows``."""
        product_BD = mx.nd.empty(matrix_BD.shape)
        _multiply_rows(memory(matrix_BD), memory(factors_B1), memory(product_BD))
        return product_BD

    def project(self, gradient_bD: Any, units_bD: Any, inverse_norms_b1: Any) -> Any:
        """See ``Vectors.project``."""
        projected_bD = mx.nd.empty(gradient_bD.shape)
        arrays = (gradient_bD, units_bD, inverse_norms_b1, projected_bD)
        _project(*(memory(array) for array in arrays))
        return projected_bD


class DeviceVectors:
    """Vectors in a device's memory, with MXNet operators."""

    def normalize(self, features_bD: Any) -> tuple[Any, Any]:
        """See ``Vectors.normalize``."""
        norms_b1 = mx.nd.norm(features_bD, axis=1, keepdims=True)
        inverse_norms_b1 = 1.0 / mx.nd.maximum(norms_b1, SMALLEST_NORM)
        return features_bD * inverse_norms_b1, inverse_norms_b1

    def multiply_rows(self, matrix_BD: Any, factors_B1: Any) -> Any:
        """See ``Vectors.multiply_rows``."""
        return matrix_BD * factors_B1

    def project(self, gradient_bD: Any, units_bD: Any, inverse_norms_b1: Any) -> Any:
        """See ``Vectors.project``."""
        radial_b1 = mx.nd.sum(gradient_bD * units_bD, axis=1, keepdims=True)
        return (gradient_bD - radial_b1 * units_bD) * inverse_norms_b1


@parallel_kernel
def _normalize(features, units, inverse_norms):  # type: ignore[no-untyped-def]
    for b in numba.prange(features.shape[0]):
        feature = features[b]
        squares = np.float32(0.0)
        for d in range(feature.size):
            squares += feature[d] * feature[d]
        inverse = np.float32(1.0) / max(np.sqrt(squares), np.float32(SMALLEST_NORM))
        inverse_norms[b, 0] = inverse
        for d in range(feature.size):
            units[b, d] = feature[d] * inverse


@parallel_kernel
def _multiply_rows(matrix, factors, product):  # type: ignore[no-untyped-def]
    for b in numba.prange(matrix.shape[0]):
        for d in range(matrix.shape[1]):
            product[b, d] = matrix[b, d] * factors[b, 0]


@parallel_kernel
def _project(gradient, units, inverse_norms, projected):  # type: ignore[no-untyped-def]
    for b in numba.prange(gradient.shape[0]):
        slope, unit = gradient[b], units[b]
        radial = np.float32(0.0)
        for d in range(slope.size):
            radial += slope[d] * unit[d]
        for d in range(slope.size):
            projected[b, d] = (slope[d] - radial * unit[d]) * inverse_norms[b, 0]
