"""A worker of a run over parameter servers: alone, or in a group with others."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional

from data.batches.epoch_part import EpochPart
from parallel.parameter_server.assignment import Assignment
from parallel.parameter_server.exchange import Exchange
from parallel.parameter_server.schemes import SCHEMES
from parallel.world import HorovodWorld, LoneWorld, Wire, World
from runtime.mxnet import mx
from runtime.stopping import StopRequest
from training.agreed_stop import AgreedStop
from training.config.images import ImageConfig
from training.exchange.rebalancing import Leg, own_speed
from training.exchange.server_optimizer import ServerOptimizer
from training.exchange.worker_groups import WorkerGroups
from training.log.stopwatch import Stopwatch
from training.log.throughput import Throughput
from training.log.timed_world import TimedWorld
from training.log.watchdog import Others
from training.progress import Progress
from training.schedules import Schedule
from training.update.optimizer import Optimizer

_log = logging.getLogger(__name__)


class ServerWorkers:
    """A worker, alone or in a group, among others that the servers connect."""

    def __init__(self, config: ImageConfig, assignment: Assignment) -> None:
        """Args: config: checked; assignment: of this worker."""
        self._config = config
        self._scheme = SCHEMES[config.exchange.kv_store]
        self._horovod: Optional[HorovodWorld] = None
        if self._scheme.has_groups:
            self._horovod = HorovodWorld(
                assignment.groups, regroups=config.exchange.rebalance is not None
            )
        self.world: World = self._horovod or LoneWorld(assignment.local_worker)
        self.number, self.size = assignment.worker, assignment.num_workers
        if not config.exchange.data_allocator:
            assignment = replace(assignment, shares=())
        self._arrange(WorkerGroups(self._scheme, assignment, config.data.batch_size))
        self._exchange = Exchange(
            self._scheme,
            assignment,
            self.world,
            staleness=config.exchange.staleness,
            images_per_step=config.data.batch_size * self.world.size,
        )
        # The version of the weights less the updates that this leg's schedule has behind it.
        self._ahead = 0
        self._told = 0

    def epoch_part(self, count: int) -> EpochPart:
        """See ``Workers.epoch_part``."""
        return self._groups.epoch_part(count)

    def updates_per_epoch(self, count: int) -> int:
        """See ``Workers.updates_per_epoch``."""
        return sum(self._groups.updates(count))

    def optimizer(self, parameters: Any, stopwatch: Stopwatch) -> Optimizer:
        """See ``Workers.optimizer``."""
        # One that measures its own speed has to tell waiting for the group from work.
        group = TimedWorld(self.world, stopwatch) if self._scheme.has_groups else self.world
        options = self._config.exchange
        wire = Wire(options.fp16_allreduce, options.gradient_predivide_factor)
        self._optimizer = ServerOptimizer(parameters, self._exchange, group, stopwatch, wire)
        return self._optimizer

    def start(self, progress: Progress, count: int) -> None:
        """See ``Workers.start``; the version tells how far the schedule has come."""
        version = round(progress.epochs_before * self.updates_per_epoch(count))
        if self._exchange.has_started:
            self._ahead = self._exchange.version - version
        else:
            self._optimizer.start(
                momentum=self._config.optimizer.momentum,
                weight_decay=self._config.optimizer.wd,
                version=version,
            )

    def schedule(self, schedule: Schedule, progress: Progress) -> Schedule:
        """See ``Workers.schedule``: by the version that came with the weights."""
        return _VersionSchedule(schedule, lambda: self._exchange.version - self._ahead)

    def numbers(self) -> dict[str, float]:
        """See ``Workers.numbers``."""
        return self._exchange.numbers()

    def stop(self, request: StopRequest) -> Callable[[], int]:
        """See ``Workers.stop``: who is told to end tells all by the board."""
        agreed = AgreedStop(request, self.world)

        def told() -> int:
            self._exchange.ask_to_stop(agreed())
            return self._exchange.stop

        return told

    def others(self) -> Others:
        """See ``Workers.others``: what this worker's latest look at the board has shown."""
        return Others(self._exchange.progress(), self._exchange.pauses)

    def pause(self, update: int) -> None:
        """See ``Workers.pause``.

        The workers of BSP are at the same update and know it by themselves; the board, whose
        changes the servers of BSP would hold back, tells those of other schemes.
        """
        if not self._scheme.is_synchronous:
            if self.saves:
                self._exchange.pause()
        elif not self.saves:
            self._exchange.expect_pause()

    def settle(self, update: int) -> None:
        """See ``Workers.settle``; who saves waits until all others have finished."""
        self._exchange.finish(waits=self.saves)

    def next_leg(self, leg: Leg, throughput: Optional[Throughput], count: int) -> Optional[Leg]:
        """See ``Workers.next_leg``.

        Who is here first looks at the board until the last has come: there the watchdog sees that
        the others come further, which it would not in a collective.
        """
        assert self._horovod is not None, "check() lets none but groups meet"
        self._exchange.leave()
        self._told = self._exchange.stop
        if self._told:
            return None
        mx.nd.waitall()
        everybody = self._horovod.everybody()
        own = mx.nd.array([own_speed(throughput, self.contributors)])
        speeds = everybody.allgather(own, "team.speeds").asnumpy().tolist()
        answer = None
        if self.number == 0:
            answer = leg, self._anew(leg.epoch, speeds, count)
            self._exchange.clear_board()
        leg, found = everybody.broadcast_object(answer, "team.leg")
        # Nothing of the former groups is under way any more.
        everybody.barrier()
        self._horovod.regroup(found.assignment.groups)
        assignment = replace(
            self._groups.assignment, groups=found.assignment.groups, shares=found.assignment.shares
        )
        self._arrange(replace(found, assignment=assignment))
        self._exchange.regroup(assignment, self._config.data.batch_size * self.world.size)
        # Nobody pushes before all have the same weights, and their version.
        everybody.barrier()
        return leg

    def leave(self, status: int) -> int:
        """See ``Workers.leave``.

        MXNet would wait for all workers at the end of the process, those that have died among them.
        A status other than 0 has the launcher end the others.
        """
        status = status or self._told
        if self._scheme.has_groups or status:
            self._exchange.leave()
        if self._horovod is not None:
            self._horovod.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def _arrange(self, groups: WorkerGroups) -> None:
        self._groups = groups
        self.contributors, self.saves = groups.contributors, groups.saves

    def _anew(self, epoch: int, speeds: Sequence[float], count: int) -> WorkerGroups:
        """The next groups, by the workers' images/s."""
        measured = " ".join(f"{speed:.0f}" for speed in speeds)
        found = self._groups.anew(speeds, count)
        if found is None:
            _log.warning(
                "epoch %d: images/s of the workers %s: groups and shares stay as they are, because "
                "a worker would read less than a batch, or has done too little to be measured",
                *(epoch, measured),
            )
            return self._groups
        _log.info("epoch %d: images/s of the workers %s: %s", epoch, measured, found)
        return found


@dataclass(frozen=True)
class _VersionSchedule:
    """A schedule that counts the updates of the weights, whoever has made them."""

    schedule: Schedule
    version: Callable[[], int]

    def lr_at(self, update: int) -> float:
        """Return the learning rate of the update that follows the weights' version."""
        return self.schedule.lr_at(self.version())
