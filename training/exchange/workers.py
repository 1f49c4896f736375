"""How the workers of a run train together: as ranks of Horovod, or over parameter servers.

What differs between the two is here, so that the program that trains does not ask: who computes and
saves together, what each reads, how gradients become weights, what the learning rate counts, and
how a run ends.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Optional, Protocol

from data.batches import epoch_part
from data.batches.epoch_part import EpochPart
from parallel.parameter_server import assignment as assignments
from parallel.world import HorovodWorld, Wire, World
from runtime.stopping import StopRequest
from training.agreed_stop import AgreedStop
from training.config.exchange import HOROVOD
from training.config.images import ImageConfig
from training.exchange.rebalancing import Leg
from training.exchange.server_workers import ServerWorkers
from training.log.stopwatch import Stopwatch
from training.log.throughput import Throughput
from training.log.timed_world import TimedWorld
from training.log.watchdog import Others
from training.progress import Progress
from training.schedules import Schedule
from training.update.optimizer import BackboneOptimizer, Optimizer


class Workers(Protocol):
    """This worker among the others.

    Attributes:
        world: those with whom it adds its gradients, validates and saves.
        number: its number among all workers.
        size: how many these are.
        contributors: those whose batches make one update.
        saves: whether its world validates, and saves models and checkpoints.
    """

    world: World
    number: int
    size: int
    contributors: int
    saves: bool

    def epoch_part(self, count: int) -> EpochPart:
        """What it reads of an epoch of ``count`` images."""

    def updates_per_epoch(self, count: int) -> int:
        """Updates that the weights have in an epoch of ``count`` images."""

    def optimizer(self, parameters: Any, stopwatch: Stopwatch) -> Optimizer:
        """The optimizer of a ``gluon.ParameterDict``."""

    def start(self, progress: Progress, count: int) -> None:
        """Let all workers begin with the same weights; they come here together."""

    def schedule(self, schedule: Schedule, progress: Progress) -> Schedule:
        """A schedule of the weights' updates, as the loop asks for it."""

    def numbers(self) -> dict[str, float]:
        """What a report tells of the others."""

    def stop(self, request: StopRequest) -> Callable[[], int]:
        """Whether to end now; see ``training.loop.fit``."""

    def others(self) -> Others:
        """What this worker has seen of those that it may have to wait for."""

    def pause(self, update: int) -> None:
        """Let the others know that those who save begin something between two updates.

        All workers call it, each before it would validate or save if it did.
        """

    def settle(self, update: int) -> None:
        """Let the weights become final, after this worker's last update."""

    def next_leg(self, leg: Leg, throughput: Optional[Throughput], count: int) -> Optional[Leg]:
        """Meet all workers, and make groups and shares anew by what each has measured.

        Args:
            leg: the next one, as this worker sees it.
            throughput: what it has counted in the one before.
            count: images of an epoch.

        Returns:
            The next leg, as worker 0 sees it; None if a worker was told to end.
        """

    def leave(self, status: int) -> int:
        """End the work together; returns the exit status of the process, or ends it with that."""


def join(config: ImageConfig) -> Workers:
    """Meet the other workers of a run.

    Args:
        config: checked.
    """
    if config.exchange.kv_store == HOROVOD:
        return HorovodWorkers(config)
    assignment = assignments.find(os.environ)
    assert assignment is not None, "check() lets no run without servers pass"
    return ServerWorkers(config, assignment)


class HorovodWorkers:
    """All ranks make each update together."""

    def __init__(self, config: ImageConfig) -> None:
        """Args: config: checked."""
        self._config = config
        self.world: World = HorovodWorld()
        self.number = self.world.rank
        self.size = self.contributors = self.world.size
        self.saves = True

    def epoch_part(self, count: int) -> EpochPart:
        """See ``Workers.epoch_part``."""
        return epoch_part.of_rank(count, self._config.data.batch_size, self.number, self.size)

    def updates_per_epoch(self, count: int) -> int:
        """See ``Workers.updates_per_epoch``."""
        return self.epoch_part(count).updates_per_epoch

    def optimizer(self, parameters: Any, stopwatch: Stopwatch) -> Optimizer:
        """See ``Workers.optimizer``."""
        options = self._config.exchange
        return BackboneOptimizer(
            self._config.optimizer,
            parameters,
            TimedWorld(self.world, stopwatch),
            dtype=self._config.classifier.dtype,
            wire=Wire(options.fp16_allreduce, options.gradient_predivide_factor),
            stopwatch=stopwatch,
        )

    def start(self, progress: Progress, count: int) -> None:
        """See ``Workers.start``; the optimizer has seen to it."""

    def schedule(self, schedule: Schedule, progress: Progress) -> Schedule:
        """See ``Workers.schedule``."""
        return progress.shifted(schedule)

    def numbers(self) -> dict[str, float]:
        """See ``Workers.numbers``: nobody can be ahead."""
        return {}

    def stop(self, request: StopRequest) -> Callable[[], int]:
        """See ``Workers.stop``."""
        return AgreedStop(request, self.world)

    def others(self) -> Others:
        """See ``Workers.others``: nobody knows more than Horovod."""
        return Others()

    def pause(self, update: int) -> None:
        """See ``Workers.pause``: all come here together."""

    def settle(self, update: int) -> None:
        """See ``Workers.settle``: they are."""

    def next_leg(self, leg: Leg, throughput: Optional[Throughput], count: int) -> Optional[Leg]:
        """See ``Workers.next_leg``."""
        raise AssertionError("check() lets no other run have legs")

    def leave(self, status: int) -> int:
        """See ``Workers.leave``."""
        return status
