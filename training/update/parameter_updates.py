"""How parameters follow their reduced gradients, and what is remembered of each.

``TrainerUpdates`` are those of Gluon's trainer, for float32. A float16 network needs more, see
``training.update.mixed_precision``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from typing_extensions import override

from runtime.devices import is_host
from runtime.mxnet import mx
from training.config.schedule import OptimizerOptions
from training.update import rules
from training.update.clipping import clip
from training.update.reduced import Reduced

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
        rule = rules.build(options, on_host=is_host(ctx))
        self._trainer = mx.gluon.Trainer(parameters, rule, kvstore=None)
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


def _arrays(state: Any) -> Iterator[Any]:
    """Yield the arrays in a state of MXNet: none, one, or tuples of such."""
    if isinstance(state, mx.nd.NDArray):
        yield state
    elif state is not None:
        for part in state:
            yield from _arrays(part)
