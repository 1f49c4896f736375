"""The optimizers of a network: gradients are summed, then every rank or the servers update.

The head's loss is the mean over the global batch and its gradient the exact one of that mean, so
what the ranks' backbones compute are addends. They are summed, not averaged; nothing else in the
program scales a gradient, save for the loss scale of float16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

from typing_extensions import override

from parallel.world import PLAIN, Wire, World
from runtime.devices import is_host
from runtime.mxnet import mx
from runtime.state import REPLICATED, Saved, State, Stateful, Stored
from runtime.stopwatch import COMMUNICATION, Stopwatch
from training.config.options import OptimizerOptions
from training.update import rules
from training.update.gradients import Reduced, clip, judge
from training.update.mixed_precision import MixedPrecisionUpdates

if TYPE_CHECKING:
    from parallel.parameter_server.exchange import Exchange


class Optimizer(Stateful):
    """Sums the gradients of a network over ranks; subclasses update the weights.

    Attributes:
        contributors: processes whose batches make one update; each divides its loss by the images
            of all.
    """

    def __init__(self, parameters: Any, world: World, wire: Wire) -> None:
        """Take the gradients of a ``gluon.ParameterDict``; ``grad_req`` "null" has none.

        ``world`` are the ranks over which they are summed, ``wire`` says how they travel.
        """
        self.contributors = world.size
        self._world, self._wire = world, wire
        self._trained = [one for one in parameters.values() if one.grad_req != "null"]
        self._gradients = [parameter.grad() for parameter in self._trained]

    def scaled(self, gradient: Any) -> Any:
        """Return what the backward pass starts from, given the loss or its gradient; queued."""
        return gradient

    def reduce(self, update: int) -> Reduced:
        """Sum the gradients of the last backward pass over the ranks, and judge them; queued."""
        self._world.allreduce_all(self._gradients, "backbone.gradient", wire=self._wire)
        self._reduced = self._judge(update)
        return self._reduced

    def update(self, update: int, lr: float) -> None:
        """Update the parameters by the reduced gradients; on a device, queued.

        Does nothing if a gradient is not finite, which the guard of the step will then say.
        """
        raise NotImplementedError

    def _judge(self, update: int) -> Reduced:
        return judge(self._gradients)


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
            parameters: see ``Optimizer``.
            world: the ranks.
            dtype: the network's; float16 gets a float32 copy of its weights and a loss scale.
            wire: how gradients travel.
            stopwatch: its deferred waits come before the host waits for the gradients.
        """
        super().__init__(parameters, world, wire)
        make_equal([parameter.data() for parameter in parameters.values()], world)
        self._settle = stopwatch.settle if stopwatch else lambda: None
        kind = MixedPrecisionUpdates if dtype == "float16" else PlainUpdates
        self._updates: Union[MixedPrecisionUpdates, PlainUpdates]
        self._updates = kind(options, self._trained, self._gradients[0].context)

    @override
    def scaled(self, gradient: Any) -> Any:
        return self._updates.scaled(gradient)

    @override
    def _judge(self, update: int) -> Reduced:
        return self._updates.judge(self._gradients, update)

    @override
    def update(self, update: int, lr: float) -> None:
        if not self._reduced.numbers:
            # The host looks at the gradients before the next backward pass overwrites them, and
            # waits for them.
            self._settle()
            if not self._reduced.are_finite(()):
                return
        self._updates.apply(lr, self._reduced)

    @override
    def export_state(self, update: int) -> State:
        # Some arrays of each parameter, and one count.
        arrays = {
            f"{name}.{number}": Stored(REPLICATED, array.asnumpy())
            for name, parts in self._updates.memory()
            for number, array in enumerate(parts)
        }
        return State(arrays, self._updates.values())

    @override
    def load_state(self, saved: Saved) -> None:
        for name, parts in self._updates.memory():
            for number, array in enumerate(parts):
                array[:] = saved.replicated(f"{name}.{number}", array.shape)
        self._updates.load(saved)


class ServerOptimizer(Optimizer):
    """SGD with momentum on parameter servers; parameters with ``wd_mult`` 0 do not decay.

    The gradients of a group are summed over its members; what happens then, and in which order with
    those of other groups, is the business of the exchange. Momentum stays with the servers, and no
    checkpoint has it.
    """

    def __init__(
        self, parameters: Any, exchange: Exchange, group: World, stopwatch: Stopwatch, wire: Wire
    ) -> None:
        """Assemble it for parameters, see ``Optimizer``; the servers hear nothing before ``start``.

        ``group`` are the workers that push as one; a timed world where there are several.
        """
        super().__init__(parameters, group, wire)
        self._exchange, self._stopwatch = exchange, stopwatch

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
    def update(self, update: int, lr: float) -> None:
        """Return with the weights of the next step.

        Gradients that are not finite are not pushed: with Horovod they would end the run of all
        ranks, but here others may go on without this worker, with the weights that it would have
        spoiled.
        """
        self._stopwatch.settle()
        # A clock that measures has waited by now. Otherwise the watchdog is to see a worker of a
        # group wait for the others.
        part = COMMUNICATION if self._world.size > 1 else self._stopwatch.current
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


class PlainUpdates:
    """A rule for float32, on the host or on a device; on a device it is queued."""

    def __init__(self, options: OptimizerOptions, trained: Sequence[Any], ctx: Any) -> None:
        """Choose the rule for parameters; weight decay is multiplied by the ``wd_mult`` of each."""
        self._options, self._is_on_host = options, is_host(ctx)
        self._trained = []
        for one in trained:
            weight, wd = one.data(), options.wd * one.wd_mult
            states = [mx.nd.zeros_like(weight) for _ in range(rules.num_states(options))]
            self._trained.append(rules.Trained(one.name, weight, one.grad(), states, wd))
        # Updates that were not skipped.
        self._count = 0

    def scaled(self, gradient: Any) -> Any:
        """Return what the backward pass starts from: its argument, as nothing underflows."""
        return gradient

    def judge(self, gradients: Sequence[Any], update: int) -> Reduced:
        """Look at the gradients."""
        return judge(gradients)

    def apply(self, lr: float, reduced: Reduced) -> None:
        """Update the parameters by their gradients."""
        self._count += 1
        with mx.engine.bulk(0 if self._is_on_host else rules.BULK_SIZE):
            if self._options.clip_norm is not None:
                clip([one.gradient for one in self._trained], self._options.clip_norm)
            rules.update(self._options, self._trained, lr, self._count)

    def memory(self) -> Iterator[tuple[str, list[Any]]]:
        """The NDArrays that are remembered of each parameter, which may be written into."""
        return ((one.name, one.states) for one in self._trained)

    def values(self) -> dict[str, float]:
        """Return the numbers for a checkpoint."""
        return {"updates": self._count}

    def load(self, saved: Saved) -> None:
        """Restore the numbers of a checkpoint."""
        self._count = saved.count("updates")


def make_equal(arrays: Sequence[Any], world: World) -> None:
    """Give every rank the arrays of rank 0."""
    if world.size > 1:
        for number, array in enumerate(arrays):
            world.broadcast(array, f"backbone.initial.{number}")
