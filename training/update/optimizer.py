"""The backbone's optimizer: gradients summed over the ranks, then the same update on every rank.

The head's loss is the mean over the global batch and its gradient the exact one of that mean, so
what the ranks' backbones compute are addends. They are summed, not averaged; nothing else in the
program scales a gradient, save for the loss scale of float16.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple, Optional, Protocol

import numpy as np
from typing_extensions import override

from parallel.world import PLAIN, Wire, World
from runtime.mxnet import mx
from runtime.ndarray import is_on_host
from runtime.state import REPLICATED, Saved, State, Stateful, Stored
from runtime.stopwatch import Stopwatch
from training.config.schedule import OptimizerOptions
from training.update.host_sgd import HostSGD
from training.update.loss_scale import LossScale


class Reduced(NamedTuple):
    """The reduced gradients of an update, which may be judged when later ones are queued."""

    numbers: tuple[Any, ...]
    """NDArrays [1] on the device of the gradients."""
    are_finite: Callable[[Sequence[float]], bool]
    """Whether all sums are finite, by the values of the numbers: the same on every rank. With a
    dynamic loss scale they always count as finite, because that expects some to overflow."""


def judged(are_finite: Callable[[], bool]) -> Reduced:
    """Gradients that are judged without numbers from the device."""
    return Reduced((), lambda numbers: are_finite())


class Optimizer(Stateful, Protocol):
    """What training asks of an optimizer, wherever that updates the weights."""

    loss_scale: LossScale
    contributors: int
    """Processes whose batches make one update: each divides its loss by the images of all."""

    def reduce(self, update: int) -> Reduced:
        """Sum the gradients of the last backward pass over the ranks.

        Args:
            update: the number of the update, from 0.
        """

    def update(self, update: int, lr: float) -> None:
        """Update the parameters by the reduced gradients."""


class BackboneOptimizer(Optimizer):
    """SGD, Adam or AdamW over the ranks; parameters with ``wd_mult`` 0 do not decay."""

    def __init__(
        self,
        options: OptimizerOptions,
        parameters: Any,
        world: World,
        *,
        dtype: str,
        wire: Wire = PLAIN,
        stopwatch: Optional[Stopwatch] = None,
    ) -> None:
        """Copy rank 0's parameters to all ranks, and set up the optimizer.

        Args:
            options: which optimizer; weight decay is multiplied by each parameter's ``wd_mult``.
            parameters: a ``gluon.ParameterDict``; those with ``grad_req`` "null" are left alone.
            world: the ranks.
            dtype: the network's; float16 gets a float32 copy of its weights and a loss scale.
            wire: how gradients travel.
            stopwatch: whose deferred waits come before an update that is not queued.
        """
        self._world, self._wire = world, wire
        self.contributors = world.size
        _make_equal([parameter.data() for parameter in parameters.values()], world)
        settings = {
            "learning_rate": 0.0,
            "wd": options.wd,
            "multi_precision": dtype == "float16",
        }
        self._gradients = [
            parameter.grad() for parameter in parameters.values() if parameter.grad_req != "null"
        ]
        on_host = all(map(is_on_host, self._gradients))
        optimizer = _build(options, settings, on_host=on_host)
        self._trainer = mx.gluon.Trainer(parameters, optimizer, kvstore=None)
        is_queued = not isinstance(optimizer, HostSGD)
        self._settle = stopwatch.settle if stopwatch and not is_queued else lambda: None
        self.loss_scale = LossScale(dynamic=dtype == "float16")

    @override
    def reduce(self, update: int) -> Reduced:
        self._world.allreduce_all(self._gradients, "backbone.gradient", wire=self._wire)
        # Judged in ``update`` at the latest: the next backward pass overwrites the gradients.
        self._are_finite = functools.lru_cache(None)(self.loss_scale.judge(self._gradients))
        return judged(self._are_finite)

    @override
    def update(self, update: int, lr: float) -> None:
        self._settle()
        self._are_finite()
        # That of the gradients; ``accept`` may choose another one for the next update.
        scale = self.loss_scale.value
        if self.loss_scale.accept(self._gradients, update):
            self._trainer.set_learning_rate(lr)
            self._trainer.update(scale)

    @override
    def export_state(self, update: int) -> State:
        # MXNet's optimizers remember arrays and one count.
        arrays = {
            f"{name}.{number}": Stored(REPLICATED, array.asnumpy())
            for name, parts in self._memory()
            for number, array in enumerate(parts)
        }
        count = {"updates": int(self._trainer.optimizer.num_update)}
        return State(arrays, {**count, **self.loss_scale.export_state(update).values})

    @override
    def load_state(self, saved: Saved) -> None:
        for name, parts in self._memory():
            for number, array in enumerate(parts):
                array[:] = saved.replicated(f"{name}.{number}", array.shape)
        optimizer = self._trainer.optimizer
        # Where the counts of all parameters begin, which have none of their own before an update.
        optimizer.begin_num_update = optimizer.num_update = saved.count("updates")
        self.loss_scale.load_state(saved)

    def _memory(self) -> Iterator[tuple[str, list[Any]]]:
        """The arrays that MXNet's optimizer keeps of each parameter, made if it has none yet."""
        updater = self._trainer._updaters[0]
        for index, parameter in enumerate(self._trainer._params):
            if parameter.grad_req == "null":
                continue
            if index not in updater.states:
                state = updater.optimizer.create_state_multi_precision(index, parameter.data())
                updater.states[index], updater.states_synced[index] = state, True
            yield parameter.name, list(_arrays(updater.states[index]))


class AdamW(mx.optimizer.Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019, algorithm 2).

    MXNet has the operator, but no optimizer around it. A step takes ``lr * wd`` of a weight, as in
    the other frameworks. Like MXNet's Adam it puts the bias correction into the learning rate
    (Kingma and Ba, ICLR 2015, end of section 2).
    """

    beta1 = 0.9
    beta2 = 0.999
    epsilon = 1e-8

    def create_state(self, index: int, weight: Any) -> tuple[Any, Any]:
        """The moments of one parameter, zero."""
        return mx.nd.zeros_like(weight), mx.nd.zeros_like(weight)

    def update(self, index: int, weight: Any, grad: Any, state: tuple[Any, Any]) -> None:
        """Update one parameter in place."""
        self._update_count(index)
        lr, updates = self._get_lr(index), self._index_update_count[index]
        correction = math.sqrt(1 - self.beta2**updates) / (1 - self.beta1**updates)
        mx.nd.contrib.adamw_update(
            weight,
            grad,
            *state,
            self.rescale_grad,
            lr=lr * correction,
            eta=1.0,
            wd=lr * self._get_wd(index),
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            out=weight,
        )


def _make_equal(arrays: Sequence[Any], world: World) -> None:
    """Give every rank the arrays of rank 0; those of one type together, as each broadcast waits."""
    if world.size == 1:
        return
    for dtype in sorted({np.dtype(array.dtype).name for array in arrays}):
        alike = [array for array in arrays if array.dtype == np.dtype(dtype)]
        joined = mx.nd.concat(*[array.reshape((-1,)) for array in alike], dim=0)
        world.broadcast(joined, f"backbone.initial.{dtype}")
        start = 0
        for array in alike:
            array[:] = joined[start : start + array.size].reshape(array.shape)
            start += array.size


def _arrays(state: Any) -> Iterator[Any]:
    """The arrays in a state of MXNet: none, one, or tuples of such."""
    if isinstance(state, mx.nd.NDArray):
        yield state
    elif state is not None:
        for part in state:
            yield from _arrays(part)


def _build(options: OptimizerOptions, settings: dict[str, Any], *, on_host: bool) -> Any:
    if options.rule == "sgd":
        sgd = HostSGD if on_host and options.momentum else mx.optimizer.SGD
        return sgd(momentum=options.momentum, **settings)
    if options.rule == "adam":
        return mx.optimizer.Adam(**settings)
    assert options.rule == "adamw", options
    return AdamW(**settings)
