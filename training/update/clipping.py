"""Clipping by the global norm: gradients that are too large together become shorter together.

One factor for all parameters, so the direction stays (Pascanu et al., On the difficulty of training
recurrent neural networks, ICML 2013, algorithm 1). The norm is that of the gradients after their
sum over the ranks and without the loss scale, so it does not depend on either. The class centers
are not part of it, as in arcface_torch: only a sample of them has a gradient in an update, and each
center's is bounded by its softmax already.

Every rank computes the norm of the same sums, and in one order whatever its number of threads, so
that all get the same factor bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.kernels.compiled import unlocked_kernel
from runtime.mxnet import mx
from runtime.ndarray import is_on_host, memory
from training.update.reduced import sums_of_squares

# A quotient by it is finite for every norm that is not zero to float32.
_SMALLEST = float(np.finfo(np.float32).tiny)


def clip(gradients: Sequence[Any], max_norm: float) -> None:
    """Multiply gradients (NDArrays float32) so that their norm together is at most ``max_norm``.

    On the host this waits for them; on a device it is queued. Gradients that are not finite stay
    so.
    """
    if all(map(is_on_host, gradients)):
        factor = _host_factor(gradients, max_norm)
        # Neither of a norm that is not finite.
        if 0 < factor < 1:
            for gradient in gradients:
                memory(gradient)[...] *= np.float32(factor)
        return
    ratio = device_factor(gradients, max_norm)
    for gradient in gradients:
        mx.nd.broadcast_mul(gradient, ratio.reshape((1,) * gradient.ndim), out=gradient)


def device_factor(gradients: Sequence[Any], max_norm: float, unscale: Any = 1.0) -> Any:
    """Return what gradients are to be multiplied with, at most 1: NDArray float32 [1]; queued.

    Args:
        gradients: NDArrays of any types on one device.
        max_norm: of the gradients times ``unscale``.
        unscale: the inverse of the loss scale, NDArray [1] or a number.
    """
    # The norm of the arrays' norms, in units of the largest: its square may exceed float32.
    norms = mx.nd.sqrt(sums_of_squares(gradients)) * unscale
    largest = mx.nd.maximum(norms.max(), _SMALLEST)
    norm = largest * mx.nd.sqrt(mx.nd.square(mx.nd.broadcast_div(norms, largest)).sum())
    return mx.nd.minimum(max_norm / norm, 1.0)


def _host_factor(gradients: Sequence[Any], max_norm: float) -> float:
    squares = math.fsum(_sum_of_squares(memory(gradient).reshape(-1)) for gradient in gradients)
    return min(1.0, max_norm / max(math.sqrt(squares), _SMALLEST))


# Of one thread, and without the reordering of the other kernels.
@unlocked_kernel
def _sum_of_squares(values):  # type: ignore[no-untyped-def]
    total = np.float64(0.0)
    for i in range(values.size):
        value = np.float64(values[i])
        total += value * value
    return total
