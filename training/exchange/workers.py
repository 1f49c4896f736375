"""Exchange of a classifier's gradients: over the ranks of Horovod, or over parameter servers.

Which workers make an update together over parameter servers, and what each reads, follows from the
scheme and from the groups and shares of the job, and with ``--rebalance`` from the speeds that the
workers have measured.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Optional, Union

from typing_extensions import override

from data.batches.image_loader import ImageLoader
from data.batches.position import EpochPart, equal_shares
from parallel import autogroup
from parallel.parameter_server import assignment as assignments
from parallel.parameter_server.assignment import SCHEMES, Assignment, Scheme, group_of
from parallel.parameter_server.exchange import Exchange
from parallel.world import HorovodWorld, LoneWorld, TimedWorld, Wire, join_ranks
from runtime import environment
from runtime.errors import StopRequest
from runtime.mxnet import mx
from runtime.stopwatch import Stopwatch
from training.config.images import HOROVOD, ImageConfig
from training.config.options import Schedule
from training.exchange.ranks import Period, Ranks, agreed_stop, own_speed
from training.log.run_log import Throughput
from training.log.watchdog import Others
from training.loop import Progress
from training.run_folder import check_data
from training.update.optimizer import BackboneOptimizer, Optimizer, ServerOptimizer

_log = logging.getLogger(__name__)


def join(
    config: ImageConfig, num_images: int, files: Sequence[Path]
) -> Union[HorovodWorkers, ServerWorkers]:
    """Meet the other workers of a run, which read ``num_images`` together in an epoch.

    Raises:
        ConfigError: a host has other files.
    """
    workers: Union[HorovodWorkers, ServerWorkers]
    if config.exchange.kv_store == HOROVOD:
        workers = HorovodWorkers(config, num_images)
    else:
        own = assignments.find(environment.variables())
        assert own is not None, "check() lets no run without servers pass"
        workers = ServerWorkers(config, own, num_images)
    check_data(files, workers.everyone)
    return workers


def _wire(config: ImageConfig) -> Wire:
    return Wire(config.exchange.fp16_allreduce, config.exchange.gradient_predivide_factor)


class HorovodWorkers(Ranks):
    """The ranks of Horovod with their optimizer and each one's part of an epoch."""

    def __init__(self, config: ImageConfig, num_images: int) -> None:
        super().__init__(join_ranks())
        self._config, self._num_images = config, num_images

    def epoch_part(self) -> EpochPart:
        """Return the part of each epoch that this rank reads."""
        batch_size = self._config.data.batch_size
        return EpochPart.of_rank(self._num_images, batch_size, self.number, self.size)

    def optimizer(self, parameters: Any, stopwatch: Stopwatch) -> Optimizer:
        """The optimizer of a ``gluon.ParameterDict``."""
        return BackboneOptimizer(
            self._config.optimizer,
            parameters,
            TimedWorld(self.world, stopwatch),
            dtype=self._config.classifier.dtype,
            wire=_wire(self._config),
            stopwatch=stopwatch,
        )


@dataclass(frozen=True)
class WorkerGroups:
    """Groups and shares over parameter servers, as one worker sees them."""

    scheme: Scheme
    assignment: Assignment
    """The assignment of this worker; without shares all workers read equal parts."""
    batch_size: int
    """Images per worker and step."""

    def epoch_part(self, count: int, worker: int) -> EpochPart:
        """Return the part of ``count`` images that a worker reads."""
        if self.scheme.is_synchronous and not self.assignment.shares:
            # As with Horovod, whose updates these are.
            return EpochPart.of_rank(count, self.batch_size, worker, self.assignment.num_workers)
        shares = self.assignment.shares or equal_shares(self.assignment.num_workers)
        return EpochPart.of_worker(count, self.batch_size, worker, shares, self.partners(worker))

    def updates(self, count: int) -> list[int]:
        """Updates of the weights by each group in an epoch of ``count`` images."""
        groups = self.scheme.synchronous_groups(self.assignment)
        return [self.epoch_part(count, group[0]).updates_per_epoch for group in groups]

    def anew(self, speeds: Sequence[float], count: int) -> WorkerGroups:
        """Return groups and shares of an epoch of ``count`` images, by all workers' images/s.

        They stay as they are if a worker was not measured, which is a speed of 0, or would have
        less than a batch.
        """
        if min(speeds) <= 0:
            return self
        groups = autogroup.group(speeds)
        found = self.regrouped(groups, autogroup.shares(groups, speeds))
        return found if all(found.updates(count)) else self

    def regrouped(self, groups: Any, shares: Any) -> WorkerGroups:
        """The same worker with other groups and shares."""
        return replace(self, assignment=replace(self.assignment, groups=groups, shares=shares))

    def partners(self, worker: int) -> tuple[int, ...]:
        """Return the workers whose batches make an update together with that of a worker."""
        groups = self.scheme.synchronous_groups(self.assignment)
        return groups[group_of(groups, worker)]

    def __str__(self) -> str:
        groups = " ".join(",".join(map(str, group)) for group in self.assignment.groups)
        shares = " ".join(f"{share.end - share.start:.3f}" for share in self.assignment.shares)
        return f"groups {groups}, shares {shares or 'equal'}"


class ServerWorkers(Ranks):
    """A worker, alone or in a group, among others that the servers connect."""

    def __init__(self, config: ImageConfig, assignment: Assignment, num_images: int) -> None:
        self._config, self._num_images = config, num_images
        self._scheme = SCHEMES[config.exchange.kv_store]
        self.rebalance_interval = config.exchange.rebalance
        self._horovod: Optional[HorovodWorld] = None
        if self._scheme.has_groups:
            self._horovod = HorovodWorld(
                assignment.groups, regroups=self.rebalance_interval is not None
            )
        super().__init__(self._horovod or LoneWorld(assignment.local_worker))
        if self._horovod:
            self.everyone = self._horovod.all_ranks()
        self.number, self.size = assignment.worker, assignment.num_workers
        if not config.exchange.data_allocator:
            assignment = replace(assignment, shares=())
        self._join(WorkerGroups(self._scheme, assignment, config.data.batch_size))
        self._exchange = Exchange(
            self._scheme,
            assignment,
            self.world,
            staleness=config.exchange.bound,
            batch_size=config.data.batch_size,
        )
        self._stop_status = 0

    def epoch_part(self) -> EpochPart:
        """Return the part of each epoch that this worker reads."""
        return self._groups.epoch_part(self._num_images, self.number)

    @override
    def updates_per_epoch(self, own: int) -> int:
        return sum(self._groups.updates(self._num_images))

    def optimizer(self, parameters: Any, stopwatch: Stopwatch) -> Optimizer:
        """The optimizer of a ``gluon.ParameterDict``."""
        # A worker that measures its own speed has to tell waiting for the group from work.
        group = TimedWorld(self.world, stopwatch) if self._scheme.has_groups else self.world
        wire = _wire(self._config)
        self._optimizer = ServerOptimizer(parameters, self._exchange, group, stopwatch, wire)
        return self._optimizer

    @override
    def start(self, schedule: Schedule, progress: Progress, updates_per_epoch: int) -> Schedule:
        """The version that came with the weights says how far the schedule has come."""
        version, ahead = round(progress.epochs_before * updates_per_epoch), 0
        self._optimizer.contributors = self.contributors
        if self._exchange.has_started:
            ahead = self._exchange.version - version
        else:
            self._optimizer.start(
                momentum=self._config.optimizer.momentum,
                weight_decay=self._config.optimizer.wd,
                version=version,
            )
        return lambda update: schedule(self._exchange.version - ahead)

    @override
    def numbers(self) -> dict[str, float]:
        return self._exchange.table.numbers("group" if self._scheme.has_groups else "worker")

    @override
    def stop(self, request: StopRequest) -> Callable[[], int]:
        """A worker that is told to end tells all others over the servers."""
        agreed = agreed_stop(request, self.world)

        def asked() -> int:
            self._exchange.ask_to_stop(agreed())
            return self._exchange.table.stop

        return asked

    @override
    def others(self) -> Others:
        table = self._exchange.table
        return Others(table.progress(), table.pauses)

    @override
    def pause(self, update: int) -> None:
        """In BSP all workers, which come here after the same updates: see ``Exchange.pause``."""
        if self.saves or self._scheme.is_synchronous:
            self._exchange.pause()

    @override
    def settle(self, update: int) -> None:
        """A worker that saves waits until all others have finished."""
        self._exchange.finish(waits=self.saves)

    @override
    def rebalance(
        self, here: Period, throughput: Optional[Throughput], batches: ImageLoader
    ) -> Optional[Period]:
        """A worker that comes early polls the servers' table until the last has come.

        There its watchdog sees that the others advance, which it would not in a collective.
        """
        assert self._horovod is not None, "check() lets none but groups rebalance"
        self._exchange.leave()
        self._stop_status = self._exchange.table.stop
        if self._stop_status:
            return None
        mx.nd.waitall()
        all_workers = self.everyone
        own = mx.nd.array([own_speed(throughput, self.contributors)])
        speeds = all_workers.allgather(own, "workers.speeds").asnumpy().tolist()
        decided = None
        if self.number == 0:
            measured = " ".join(f"{speed:.0f}" for speed in speeds)
            found = self._groups.anew(speeds, self._num_images)
            _log.info("epoch %d: images/s of the workers %s: %s", here[0], measured, found)
            decided = here, found.assignment.groups, found.assignment.shares
            self._exchange.clear_table()
        period: Period
        period, groups, shares = all_workers.broadcast_object(decided, "workers.period")
        # No collective of the former groups is under way any more.
        all_workers.barrier()
        self._horovod.regroup(groups)
        self._join(self._groups.regrouped(groups, shares))
        self._exchange.regroup(self._groups.assignment)
        # No worker pushes before all have the same weights, and their version.
        all_workers.barrier()
        batches.read(self.epoch_part())
        return period

    @override
    def leave(self, status: int) -> int:
        """Ends the process: MXNet would wait at its end for all workers, also for dead ones.

        A status other than 0 has the launcher end the others.
        """
        status = status or self._stop_status
        if self._scheme.has_groups or status:
            self._exchange.leave()
        if self._horovod is not None:
            self._horovod.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def _join(self, groups: WorkerGroups) -> None:
        self._groups = groups
        self.contributors = len(groups.partners(self.number))
        pushers = self._scheme.pushers(groups.assignment)
        self.saves = group_of(pushers, self.number) == group_of(pushers, 0)
