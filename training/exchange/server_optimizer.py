"""The optimizer of a network whose weights parameter servers keep.

To a training step it is an optimizer like ``BackboneOptimizer``. The gradients of a group are
summed over its members; what happens then, and in which order with those of other groups, is the
business of the exchange. Momentum stays with the servers, and no checkpoint has it.

Gradients that are not finite are not pushed: with Horovod they would end the run of all ranks, but
here others may go on without this worker, with the weights that it would have spoiled.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from parallel.parameter_server.exchange import Exchange
from parallel.world import Wire, World
from runtime.state import Saved, State
from runtime.stopwatch import COMMUNICATION, Stopwatch
from training.update.gradients import Reduced, judge
from training.update.optimizer import Optimizer


class ServerOptimizer(Optimizer):
    """SGD with momentum on parameter servers; parameters with ``wd_mult`` 0 do not decay."""

    def __init__(
        self, parameters: Any, exchange: Exchange, group: World, stopwatch: Stopwatch, wire: Wire
    ) -> None:
        """Assemble it for a ``gluon.ParameterDict``; the servers hear nothing before ``start``.

        ``group`` are the workers that push as one; a timed world where there are several.
        """
        self._trained = [
            parameter for parameter in parameters.values() if parameter.grad_req != "null"
        ]
        self._gradients = [parameter.grad() for parameter in self._trained]
        self._exchange, self._group = exchange, group
        self._stopwatch, self._wire = stopwatch, wire
        self.contributors = group.size

    def start(self, *, momentum: float, weight_decay: float, version: int) -> None:
        """Begin with equal weights; see ``Exchange.start``."""
        self._exchange.start(
            [parameter.data() for parameter in self._trained],
            [parameter.wd_mult for parameter in self._trained],
            momentum=momentum,
            weight_decay=weight_decay,
            version=version,
        )

    @override
    def reduce(self, update: int) -> Reduced:
        self._group.allreduce_all(self._gradients, "backbone.gradient", wire=self._wire)
        self._reduced = judge(self._gradients)
        return self._reduced

    @override
    def update(self, update: int, lr: float) -> None:
        """Returns with the weights of the next step.

        Does nothing if a gradient is not finite, which the guard of the step will then say.
        """
        self._stopwatch.settle()
        # A clock that measures has waited by now. Otherwise the watchdog is to see a worker of a
        # group wait for the others.
        part = COMMUNICATION if self._group.size > 1 else self._stopwatch.current
        with self._stopwatch.part(part):
            for gradient in self._gradients:
                gradient.wait_to_read()
        if not self._reduced.are_finite([one.asscalar() for one in self._reduced.numbers]):
            return
        with self._stopwatch.part(COMMUNICATION):
            self._exchange.step(self._gradients, lr)

    @override
    def export_state(self, update: int) -> State:
        # The weights are in the model's part.
        return State()

    @override
    def load_state(self, saved: Saved) -> None:
        """The servers begin without momentum."""
