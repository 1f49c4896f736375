"""The optimizers of a network: SGD with momentum, Adam and AdamW.

Each has two forms that do the same: operators that update float32 parameters in place (``update``),
and operators on arrays that stand end to end, for the updates of a float16 network (``step``). The
optimizers of the class centers, which have the same names, are in ``partial_fc.optimizers``.

SGD with momentum on a CPU has a kernel (``update_on_host``): MXNet's own operator for many
parameters leaves the vector units of a processor idle, and takes six times as long as memory needs.
The rule is MXNet's, and so is what is kept, so that checkpoints of one fit the other. The kernel
takes all parameters at once. Most have some hundred numbers, which a thread has computed before
another one has been woken up: MobileNetV2 has 2.3 million numbers in 173 arrays, for which threads
that were started for each array took a fifth of a training step.

AdamW is Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019, algorithm 2): a step
takes ``lr * wd`` of a weight, as in the other frameworks. The correction of the bias is part of the
learning rate, as in MXNet's Adam (Kingma and Ba, ICLR 2015, end of section 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.devices import is_host
from runtime.kernels import array_at, inlined, parallel_kernel, prange, product_of
from runtime.mxnet import mx
from runtime.ndarray import addresses
from training.config.options import OptimizerOptions

_BETA1 = 0.9
_BETA2 = 0.999
_MOMENTS = {"beta1": _BETA1, "beta2": _BETA2, "epsilon": 1e-8}
# Operators on a device that the engine starts as one: after each one it would wait for the device.
BULK_SIZE = 60
# Parameters that one operator of SGD updates, by MXNET_OPTIMIZER_AGGREGATION_SIZE.
_AT_ONCE: int = mx.optimizer.SGD().aggregate_num
# Threads of the kernels share the numbers of all arrays in pieces, whose bounds may lie within one.
_PIECES = 16


class Trained(NamedTuple):
    """A float32 parameter, and what its updates need."""

    name: str
    weight: Any
    gradient: Any
    states: list[Any]
    """Zero at first, of the weight's shape; see ``num_states``."""
    wd: float


def num_states(options: OptimizerOptions) -> int:
    """Return how many arrays of the size of a parameter are remembered."""
    return int(options.momentum > 0) if options.optimizer == "sgd" else 2


def update(options: OptimizerOptions, trained: Sequence[Trained], lr: float, count: int) -> None:
    """Update weights and states in place; queued, but for SGD with momentum on the host.

    ``count`` is the number of updates, this one included.
    """
    on_host = is_host(trained[0].weight.context)
    if options.optimizer == "sgd" and options.momentum and on_host:
        update_on_host(trained, lr, options.momentum)
        return
    if options.optimizer == "sgd":
        for start in range(0, len(trained), _AT_ONCE):
            _update_by_sgd(trained[start : start + _AT_ONCE], lr, options.momentum)
        return
    correction = math.sqrt(1 - _BETA2**count) / (1 - _BETA1**count)
    for _, weight, gradient, states, wd in trained:
        rates = {"lr": lr * correction, **_MOMENTS, "out": weight}
        if options.optimizer == "adam":
            mx.nd.adam_update(weight, gradient, *states, wd=wd, **rates)
        elif on_host:
            decay = {"eta": 1.0, "wd": lr * wd}
            mx.nd.contrib.adamw_update(weight, gradient, *states, 1.0, **decay, **rates)
        else:
            # The operator for it copies its ``rescale_grad`` to the host, and waits for that.
            if wd:
                weight *= 1 - lr * wd
            mx.nd.adam_update(weight, gradient, *states, **rates)


def _update_by_sgd(trained: Sequence[Trained], lr: float, momentum: float) -> None:
    arrays = [array for one in trained for array in (one.weight, one.gradient, *one.states)]
    rates = {"lrs": [lr] * len(trained), "wds": [one.wd for one in trained]}
    more = {"num_weights": len(trained), "out": [one.weight for one in trained]}
    if momentum:
        mx.nd.multi_sgd_mom_update(*arrays, momentum=momentum, **rates, **more)
    else:
        mx.nd.multi_sgd_update(*arrays, **rates, **more)


def step(
    options: OptimizerOptions, weight: Any, gradient: Any, states: list[Any], lr: float, count: Any
) -> Any:
    """Return the new weight; ``states`` (float32, as the others) are overwritten. Queued.

    ``count`` is the number of updates, this one included: NDArray [1] on the device.
    """
    if options.optimizer == "sgd":
        rule = {"lr": lr, "wd": options.wd}
        if not states:
            return mx.nd.sgd_update(weight, gradient, **rule)
        return mx.nd.sgd_mom_update(weight, gradient, *states, momentum=options.momentum, **rule)
    if options.optimizer == "adam":
        gradient = gradient + options.wd * weight
    # The operator takes no learning rate from the device: a step of 1 from 0 is the direction.
    zero = mx.nd.zeros_like(weight)
    direction = mx.nd.adam_update(zero, gradient, *states, lr=1.0, **_MOMENTS)
    if options.optimizer == "adamw":
        weight = weight * (1 - lr * options.wd)
    return weight + direction * (lr * _bias_correction(count))


def _bias_correction(count: Any) -> Any:
    """Return Adam's factor of the learning rate after ``count`` updates (NDArray [1]).

    1 - beta^count would lose half of its digits in float32.
    """
    first, second = (-mx.nd.expm1(count * math.log(beta)) for beta in (_BETA1, _BETA2))
    return mx.nd.sqrt(second) / first


def update_on_host(trained: Sequence[Trained], lr: float, momentum: float) -> None:
    """Update weights and momenta in place, by SGD in one pass.

    ``momentum = μ · momentum - lr · (gradient + wd · weight)``, which is added to the weight. All
    are float32, contiguous, in the memory of the CPU. The update is not queued: it waits for the
    gradients and is done when it returns.
    """
    _, weights, gradients, states, wds = zip(*trained)
    momenta = [array for (array,) in states]
    found = np.array(addresses([*weights, *gradients, *momenta]), np.uintp).reshape(3, -1)
    rates = np.array([[lr] * len(wds), wds], np.float32)
    common = np.array([momentum, 1.0], np.float32)
    _move(found, _offsets([one.size for one in weights]), rates, common)


def all_finite(gradients: Sequence[Any]) -> bool:
    """Return True if the squares of each array (float32, on the CPU) have a finite sum; waits.

    It may be a part of an array whose sum is looked at.
    """
    found = np.array(addresses(gradients), np.uintp)
    return bool(_are_finite(found, _offsets([one.size for one in gradients])).all())


def _offsets(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return the start of each of n arrays among the numbers of all, and the end [n + 1]."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


@inlined
def _part(offsets, piece):  # type: ignore[no-untyped-def]
    """Return begin and end of a piece among the numbers of all arrays, and its arrays."""
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
def _move(  # type: ignore[no-untyped-def]
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
