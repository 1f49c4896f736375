"""SGD with momentum on a CPU: one pass over weights, gradients and momenta.

MXNet's own operator for many parameters leaves the vector units of a processor idle: it takes six
times as long as memory needs. The rule is MXNet's, and so is what is kept, so that checkpoints of
one fit the other.

A kernel takes all parameters at once. Most have some hundred numbers, which a thread has computed
before another one has been woken up: MobileNetV2 has 2.3 million numbers in 173 arrays, for which
threads that were started for each array took a fifth of a training step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.kernels import array_at, inlined, parallel_kernel, prange, product_of
from runtime.ndarray import addresses

# Threads share the numbers of all arrays in pieces, whose bounds may lie within an array.
_PIECES = 16


def update(
    weights: Sequence[Any],
    gradients: Sequence[Any],
    momenta: Sequence[Any],
    wds: Sequence[float],
    lr: float,
    momentum: float,
) -> None:
    """Update weights and momenta in place.

    ``momentum = μ · momentum - lr · (gradient + wd · weight)``, which is added to the weight. All
    are float32, contiguous, in the memory of the CPU. The update is not queued: it waits for the
    gradients and is done when it returns.
    """
    found = np.array(addresses([*weights, *gradients, *momenta]), np.uintp).reshape(3, -1)
    rates = np.array([[lr] * len(wds), wds], np.float32)
    common = np.array([momentum, 1.0], np.float32)
    _step(found, _offsets([one.size for one in weights]), rates, common)


def all_finite(gradients: Sequence[Any]) -> bool:
    """Return True if the squares of each array (float32, on the CPU) have a finite sum; waits.

    It may be a part of an array whose sum is looked at.
    """
    found = np.array(addresses(gradients), np.uintp)
    return bool(_are_finite(found, _offsets([one.size for one in gradients])).all())


def _offsets(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Where each of n arrays begins among the numbers of all, and where the last ends [n + 1]."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


@inlined
def _part(offsets, piece):  # type: ignore[no-untyped-def]
    """Where a piece begins and ends among the numbers of all arrays, and which arrays it is of."""
    begin = offsets[-1] * piece // _PIECES
    end = offsets[-1] * (piece + 1) // _PIECES
    first, last = -1, 0
    # A binary search (np.searchsorted) takes Numba seconds to compile.
    for offset in offsets:
        first += offset <= begin
        last += offset < end
    return begin, end, first, last


# Without while: of Python 3.9's bytecode Numba makes no parallel loop around one.
@parallel_kernel
def _step(  # type: ignore[no-untyped-def]
    addresses, offsets, rates, common
):
    """Addresses [weight, gradient, momentum; n], offsets [n + 1], lr and wd [2, n], μ and scale."""
    momentum, scale = common
    for piece in prange(_PIECES):
        begin, end, first, last = _part(offsets, piece)
        for array in range(first, last):
            size = offsets[array + 1] - offsets[array]
            weight = array_at(addresses[0, array], size, np.float32)
            gradient = array_at(addresses[1, array], size, np.float32)
            velocity = array_at(addresses[2, array], size, np.float32)
            lr, wd = rates[0, array], rates[1, array]
            for i in range(max(begin - offsets[array], 0), min(end - offsets[array], size)):
                slope = scale * gradient[i] + wd * weight[i]
                velocity[i] = momentum * velocity[i] - lr * slope
                weight[i] += velocity[i]


@parallel_kernel
def _are_finite(addresses, offsets):  # type: ignore[no-untyped-def]
    """Return for each piece of arrays at addresses [n] whether its squares have a finite sum."""
    found = np.ones(_PIECES, np.bool_)
    for piece in prange(_PIECES):
        begin, end, first, last = _part(offsets, piece)
        for array in range(first, last):
            size = offsets[array + 1] - offsets[array]
            start = max(begin - offsets[array], 0)
            stop = min(end - offsets[array], size)
            values = array_at(addresses[array], size, np.float32)[start:stop]
            found[piece] &= np.isfinite(product_of(values, values))
    return found
