"""How parameters follow their reduced gradients: the rule, and what it remembers of each.

``TrainerUpdates`` are those of Gluon's trainer, for float32. A float16 network needs more, see
``training.update.mixed_precision``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

from typing_extensions import override

from runtime.devices import is_host
from runtime.mxnet import mx
from training.config.schedule import OptimizerOptions
from training.update.clipping import clip
from training.update.host_sgd import HostSGD
from training.update.reduced import Reduced

BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-8
# Operators on a device that the engine starts as one: after each one it would wait for the device.
BULK_SIZE = 60


class ParameterUpdates(Protocol):
    """The parameters, what a rule remembers of them, and the rule."""

    @property
    def count(self) -> int:
        """Updates that were not skipped; reading it waits for them."""

    @count.setter
    def count(self, updates: int) -> None: ...

    def apply(self, lr: float, reduced: Reduced) -> None:
        """Update the parameters by their gradients at the learning rate ``lr``."""

    def memory(self) -> Iterator[tuple[str, list[Any]]]:
        """The NDArrays that are remembered of each parameter, which may be written into."""


class TrainerUpdates(ParameterUpdates):
    """A rule for float32, on the host or on a device; on a device it is queued."""

    def __init__(self, options: OptimizerOptions, parameters: Any, ctx: Any) -> None:
        """Choose the rule.

        Args:
            options: which; weight decay is multiplied by each parameter's ``wd_mult``.
            parameters: a ``gluon.ParameterDict``; those with ``grad_req`` "null" are left alone.
            ctx: where they are.
        """
        self._trainer = mx.gluon.Trainer(
            parameters, _build(options, on_host=is_host(ctx)), kvstore=None
        )
        self._bulk_size = 0 if is_host(ctx) else BULK_SIZE
        self._max_norm = options.clip_norm
        self._gradients = [
            parameter.grad() for parameter in parameters.values() if parameter.grad_req != "null"
        ]

    @property
    def count(self) -> int:
        """See ``ParameterUpdates``."""
        return int(self._trainer.optimizer.num_update)

    @count.setter
    def count(self, updates: int) -> None:
        optimizer = self._trainer.optimizer
        # Where the counts of all parameters begin, which have none of their own before an update.
        optimizer.begin_num_update = optimizer.num_update = updates

    @override
    def apply(self, lr: float, reduced: Reduced) -> None:
        self._trainer.set_learning_rate(lr)
        with mx.engine.bulk(self._bulk_size):
            if self._max_norm is not None:
                clip(self._gradients, self._max_norm)
            self._trainer.update(1)

    @override
    def memory(self) -> Iterator[tuple[str, list[Any]]]:
        updater = self._trainer._updaters[0]
        for index, parameter in enumerate(self._trainer._params):
            if parameter.grad_req == "null":
                continue
            if index not in updater.states:
                # Otherwise the trainer makes it at the first update.
                state = updater.optimizer.create_state_multi_precision(index, parameter.data())
                updater.states[index], updater.states_synced[index] = state, True
            yield parameter.name, list(_arrays(updater.states[index]))


class AdamW(mx.optimizer.Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019, algorithm 2).

    MXNet has the operator, but no optimizer around it. A step takes ``lr * wd`` of a weight, as in
    the other frameworks. Like MXNet's Adam it puts the bias correction into the learning rate
    (Kingma and Ba, ICLR 2015, end of section 2).
    """

    def create_state(self, index: int, weight: Any) -> tuple[Any, Any]:
        """The moments of one parameter, zero."""
        return mx.nd.zeros_like(weight), mx.nd.zeros_like(weight)

    def update(self, index: int, weight: Any, grad: Any, state: tuple[Any, Any]) -> None:
        """Update one parameter in place."""
        self._update_count(index)
        lr, wd, updates = self._get_lr(index), self._get_wd(index), self._index_update_count[index]
        correction = math.sqrt(1 - BETA2**updates) / (1 - BETA1**updates)
        moments = {"beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON}
        if is_host(weight.context):
            mx.nd.contrib.adamw_update(
                *(weight, grad, *state, self.rescale_grad),
                **{"lr": lr * correction, "eta": 1.0, "wd": lr * wd, **moments, "out": weight},
            )
            return
        # The operator for it copies ``rescale_grad`` to the host, and waits for that.
        if wd:
            weight *= 1 - lr * wd
        mx.nd.adam_update(weight, grad, *state, lr=lr * correction, **moments, out=weight)


def _arrays(state: Any) -> Iterator[Any]:
    """The arrays in a state of MXNet: none, one, or tuples of such."""
    if isinstance(state, mx.nd.NDArray):
        yield state
    elif state is not None:
        for part in state:
            yield from _arrays(part)


def _build(options: OptimizerOptions, *, on_host: bool) -> Any:
    settings = {"learning_rate": 0.0, "wd": options.wd}
    if options.rule == "sgd":
        sgd = HostSGD if on_host and options.momentum else mx.optimizer.SGD
        return sgd(momentum=options.momentum, **settings)
    if options.rule == "adam":
        return mx.optimizer.Adam(beta1=BETA1, beta2=BETA2, epsilon=EPSILON, **settings)
    assert options.rule == "adamw", options
    return AdamW(**settings)
