"""The optimizers of a network: SGD with momentum, Adam and AdamW.

Each has two forms that do the same: an optimizer of MXNet for float32 (``build``), and operators on
arrays that stand end to end, for the updates of a float16 network (``step``). Those of the class
centers, which have the same names, are in ``partial_fc.optimizers``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from runtime.devices import is_host
from runtime.mxnet import mx
from training.config.schedule import OptimizerOptions
from training.update.host_sgd import HostSGD

_BETA1 = 0.9
_BETA2 = 0.999
_MOMENTS = {"beta1": _BETA1, "beta2": _BETA2, "epsilon": 1e-8}
# Operators on a device that the engine starts as one: after each one it would wait for the device.
BULK_SIZE = 60


class Rates(NamedTuple):
    """The numbers of one update."""

    lr: float
    wd: float
    count: Any
    """Updates so far, this one included: NDArray [1] on the device."""


def build(options: OptimizerOptions, *, on_host: bool) -> Any:
    """Return an optimizer of MXNet, for Gluon's trainer."""
    settings = {"learning_rate": 0.0, "wd": options.wd}
    if options.rule == "sgd":
        sgd = HostSGD if on_host and options.momentum else mx.optimizer.SGD
        return sgd(momentum=options.momentum, **settings)
    if options.rule == "adam":
        return mx.optimizer.Adam(**_MOMENTS, **settings)
    assert options.rule == "adamw", options
    return AdamW(**settings)


def num_states(options: OptimizerOptions) -> int:
    """Return how many arrays of the size of a parameter are remembered."""
    return int(options.momentum > 0) if options.rule == "sgd" else 2


def step(
    options: OptimizerOptions, weight: Any, gradient: Any, states: list[Any], rates: Rates
) -> Any:
    """Return the new weight; ``states`` (float32, as the others) are overwritten. Queued."""
    decay = rates.wd
    if options.rule == "sgd":
        rule = {"lr": rates.lr, "wd": decay}
        if not states:
            return mx.nd.sgd_update(weight, gradient, **rule)
        return mx.nd.sgd_mom_update(weight, gradient, *states, momentum=options.momentum, **rule)
    if options.rule == "adam":
        gradient = gradient + decay * weight
    # The operator takes no learning rate from the device: a step of 1 from 0 is the direction.
    zero = mx.nd.zeros_like(weight)
    direction = mx.nd.adam_update(zero, gradient, *states, lr=1.0, **_MOMENTS)
    if options.rule == "adamw":
        weight = weight * (1 - rates.lr * decay)
    return weight + direction * (rates.lr * _bias_correction(rates.count))


def _bias_correction(count: Any) -> Any:
    """Return Adam's factor of the learning rate after ``count`` updates (NDArray [1]).

    1 - beta^count would lose half of its digits in float32.
    """
    first, second = (-mx.nd.expm1(count * math.log(beta)) for beta in (_BETA1, _BETA2))
    return mx.nd.sqrt(second) / first


class AdamW(mx.optimizer.Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019, algorithm 2).

    MXNet has the operator, but no optimizer around it. A step takes ``lr * wd`` of a weight, as in
    the other frameworks. Like MXNet's Adam it puts the bias correction into the learning rate
    (Kingma and Ba, ICLR 2015, end of section 2).
    """

    def create_state(self, index: int, weight: Any) -> tuple[Any, Any]:
        """Return the moments of one parameter, zero."""
        return mx.nd.zeros_like(weight), mx.nd.zeros_like(weight)

    def update(self, index: int, weight: Any, grad: Any, state: tuple[Any, Any]) -> None:
        """Update one parameter in place."""
        self._update_count(index)
        lr, wd, updates = self._get_lr(index), self._get_wd(index), self._index_update_count[index]
        correction = math.sqrt(1 - _BETA2**updates) / (1 - _BETA1**updates)
        if is_host(weight.context):
            mx.nd.contrib.adamw_update(
                *(weight, grad, *state, self.rescale_grad),
                **{"lr": lr * correction, "eta": 1.0, "wd": lr * wd, **_MOMENTS, "out": weight},
            )
            return
        # The operator for it copies ``rescale_grad`` to the host, and waits for that.
        if wd:
            weight *= 1 - lr * wd
        mx.nd.adam_update(weight, grad, *state, lr=lr * correction, **_MOMENTS, out=weight)
