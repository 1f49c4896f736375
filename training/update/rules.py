"""The optimizers of a network: SGD with momentum, Adam and AdamW.

Each has two forms that do the same: operators that update float32 parameters in place (``update``),
and operators on arrays that stand end to end, for the updates of a float16 network (``step``). SGD
with momentum on a CPU has a kernel, ``host_sgd``. The optimizers of the class centers, which have
the same names, are in ``partial_fc.optimizers``.

AdamW is Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019, algorithm 2): a step
takes ``lr * wd`` of a weight, as in the other frameworks. The correction of the bias is part of the
learning rate, as in MXNet's Adam (Kingma and Ba, ICLR 2015, end of section 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from runtime.devices import is_host
from runtime.mxnet import mx
from training.config.schedule import OptimizerOptions

_BETA1 = 0.9
_BETA2 = 0.999
_MOMENTS = {"beta1": _BETA1, "beta2": _BETA2, "epsilon": 1e-8}
# Operators on a device that the engine starts as one: after each one it would wait for the device.
BULK_SIZE = 60
# Parameters that one operator of SGD updates, by MXNET_OPTIMIZER_AGGREGATION_SIZE.
_AT_ONCE: int = mx.optimizer.SGD().aggregate_num


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
    """Update weights and states in place; queued.

    ``count`` is the number of updates, this one included.
    """
    if options.optimizer == "sgd":
        for start in range(0, len(trained), _AT_ONCE):
            _update_by_sgd(trained[start : start + _AT_ONCE], lr, options.momentum)
        return
    correction = math.sqrt(1 - _BETA2**count) / (1 - _BETA1**count)
    for _, weight, gradient, states, wd in trained:
        rates = {"lr": lr * correction, **_MOMENTS, "out": weight}
        if options.optimizer == "adam":
            mx.nd.adam_update(weight, gradient, *states, wd=wd, **rates)
        elif is_host(weight.context):
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
