"""How the workers of a run train together: as ranks of Horovod, or over parameter servers.

What differs between the two is here, so that the program that trains does not ask: who computes and
saves together, what each reads, how gradients become weights, what the learning rate counts, and
how a run ends.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, Callable, Protocol

from data import portion
from data.portion import Portion
from parallel.parameter_server import place as places
from parallel.parameter_server.exchange import Exchange
from parallel.parameter_server.place import Place
from parallel.parameter_server.schemes import SCHEMES, team_of
from parallel.world import HorovodWorld, LoneWorld, Wire, World
from runtime.stopping import StopRequest
from training.classify_config import ClassifyConfig
from training.ending import AgreedStop
from training.optimizer import BackboneOptimizer, Optimizer
from training.progress import Progress
from training.schedules import Schedule
from training.server_optimizer import ServerOptimizer
from training.stopwatch import Stopwatch
from training.store_config import HOROVOD
from training.timed_world import TimedWorld


class Team(Protocol):
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

    def portion(self, count: int) -> Portion:
        """What it reads of an epoch of ``count`` pictures."""

    def updates_per_epoch(self, count: int) -> int:
        """Updates that the weights have in an epoch of ``count`` pictures."""

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

    def settle(self, update: int) -> None:
        """Let the weights become final, after this worker's last update."""

    def leave(self, status: int) -> int:
        """End the work together; returns the exit status of the process, or ends it with that."""


def join(config: ClassifyConfig) -> Team:
    """Meet the other workers of a run.

    Args:
        config: checked.
    """
    if config.kv_store == HOROVOD:
        return HorovodTeam(config)
    place = places.find(os.environ)
    assert place is not None, "check() lets no run without servers pass"
    return ServerTeam(config, place)


class HorovodTeam:
    """All ranks make each update together."""

    def __init__(self, config: ClassifyConfig) -> None:
        """Args: config: checked."""
        self._config = config
        self.world: World = HorovodWorld()
        self.number = self.world.rank
        self.size = self.contributors = self.world.size
        self.saves = True

    def portion(self, count: int) -> Portion:
        """See ``Team.portion``."""
        return portion.of_rank(count, self._config.batch_size, self.number, self.size)

    def updates_per_epoch(self, count: int) -> int:
        """See ``Team.updates_per_epoch``."""
        return self.portion(count).updates_per_epoch

    def optimizer(self, parameters: Any, stopwatch: Stopwatch) -> Optimizer:
        """See ``Team.optimizer``."""
        return BackboneOptimizer(
            parameters,
            TimedWorld(self.world, stopwatch),
            name="sgd",
            momentum=self._config.momentum,
            weight_decay=self._config.wd,
            dtype=self._config.dtype,
            wire=_wire(self._config),
        )

    def start(self, progress: Progress, count: int) -> None:
        """See ``Team.start``; the optimizer has seen to it."""

    def schedule(self, schedule: Schedule, progress: Progress) -> Schedule:
        """See ``Team.schedule``."""
        return progress.shifted(schedule)

    def numbers(self) -> dict[str, float]:
        """See ``Team.numbers``: nobody can be ahead."""
        return {}

    def stop(self, request: StopRequest) -> Callable[[], int]:
        """See ``Team.stop``."""
        return AgreedStop(request, self.world)

    def settle(self, update: int) -> None:
        """See ``Team.settle``: they are."""

    def leave(self, status: int) -> int:
        """See ``Team.leave``."""
        return status


class ServerTeam:
    """A worker, alone or in a group, among others that the servers connect."""

    def __init__(self, config: ClassifyConfig, place: Place) -> None:
        """Args: config: checked; place: of this worker."""
        self._config, self._place = config, place
        self._scheme = SCHEMES[config.kv_store]
        self._teams = self._scheme.teams(place)
        self._horovod = HorovodWorld(place.groups) if self._scheme.has_groups else None
        self.world: World = self._horovod or LoneWorld(place.local_worker)
        self.number, self.size = place.worker, place.num_workers
        own = team_of(self._teams, place.worker)
        self.contributors = len(self._teams[own])
        pushers = self._scheme.pushers(place)
        self.saves = team_of(pushers, place.worker) == team_of(pushers, 0)
        self._exchange = Exchange(
            self._scheme,
            place,
            self.world,
            staleness=config.staleness,
            images_per_step=config.batch_size * self.world.size,
        )

    def portion(self, count: int) -> Portion:
        """See ``Team.portion``."""
        return self._portion(count, self.number)

    def updates_per_epoch(self, count: int) -> int:
        """See ``Team.updates_per_epoch``."""
        return sum(self._portion(count, team[0]).updates_per_epoch for team in self._teams)

    def optimizer(self, parameters: Any, stopwatch: Stopwatch) -> Optimizer:
        """See ``Team.optimizer``."""
        group = TimedWorld(self.world, stopwatch) if self.world.size > 1 else self.world
        self._optimizer = ServerOptimizer(
            parameters, self._exchange, group, stopwatch, _wire(self._config)
        )
        return self._optimizer

    def start(self, progress: Progress, count: int) -> None:
        """See ``Team.start``; the version tells how far the schedule has come."""
        passed = progress.start_update + progress.schedule_shift
        epochs = passed / self.portion(count).updates_per_epoch
        self._optimizer.start(
            momentum=self._config.momentum,
            weight_decay=self._config.wd,
            version=round(epochs * self.updates_per_epoch(count)),
        )

    def schedule(self, schedule: Schedule, progress: Progress) -> Schedule:
        """See ``Team.schedule``: by the version that came with the weights."""
        return _VersionSchedule(schedule, self._exchange)

    def numbers(self) -> dict[str, float]:
        """See ``Team.numbers``."""
        return self._exchange.numbers()

    def stop(self, request: StopRequest) -> Callable[[], int]:
        """See ``Team.stop``: who is told to end tells all by the board."""
        agreed = AgreedStop(request, self.world)

        def told() -> int:
            self._exchange.ask_to_stop(agreed())
            return self._exchange.stop

        return told

    def settle(self, update: int) -> None:
        """See ``Team.settle``; who saves waits until all others have finished."""
        self._exchange.finish(waits=self.saves)

    def leave(self, status: int) -> int:
        """See ``Team.leave``.

        MXNet would wait for all workers at the end of the process, those that have died among them.
        A status other than 0 has the launcher end the others.
        """
        if self._scheme.has_groups or status:
            self._exchange.leave()
        if self._horovod is not None:
            self._horovod.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def _portion(self, count: int, worker: int) -> Portion:
        batch_size, place = self._config.batch_size, self._place
        if self._config.data_allocator:
            shares: Any = place.shares
        elif self._scheme.is_synchronous:
            # As with Horovod, whose updates these are.
            return portion.of_rank(count, batch_size, worker, place.num_workers)
        else:
            shares = portion.equal_shares(place.num_workers)
        together = self._teams[team_of(self._teams, worker)]
        return portion.of_worker(count, batch_size, worker, shares, together)


@dataclass(frozen=True)
class _VersionSchedule:
    """A schedule that counts the updates of the weights, whoever has made them."""

    schedule: Schedule
    exchange: Exchange

    def lr_at(self, update: int) -> float:
        """Return the learning rate of the update that follows the weights' version."""
        return self.schedule.lr_at(self.exchange.version)


def _wire(config: ClassifyConfig) -> Wire:
    return Wire(config.fp16_allreduce, config.gradient_predivide_factor)
