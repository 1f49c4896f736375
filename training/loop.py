"""The training loop: batches in, updates, and what happens between them.

The loop knows neither faces nor classifiers. It is handed a step (one update on one batch) and
actions for what happens now and then, so that every kind of training shares its order of events,
its clock and its log.

A run that goes on with another global batch has to say what its numbers mean from there on. What
is given in updates (--max-update, --warmup, --lr-steps) counts updates, whatever their size. A
length in epochs counts passes over the data: the run ends after those that are left, and the
learning rate is the one that a run with this global batch would have at the same place.

A run that is finished may train its schedule again (``Progress.again``): updates and epochs count
on, the schedule starts from its beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional, Protocol

from typing_extensions import override

from data.batches.loader import Loader
from data.batches.position import EpochPlan, Position
from runtime.state import Saved, State, Stateful
from runtime.stopwatch import WAITING
from training.config.options import Schedule, ScheduleOptions
from training.log.run_log import RunLog

_log = logging.getLogger(__name__)


class Step(Protocol):
    """One update on one batch."""

    def __call__(self, batch: Any, update: int, lr: float) -> Any:
        """Train on ``batch`` at learning rate ``lr``; returns the global batch's mean loss.

        The loss is an NDArray [1] that may still be computed.
        """

    def prepare(self, batch: Any, update: int) -> None:
        """Begin what can be done for an update while the one before it is made."""
        return

    def finish(self) -> None:
        """Wait for what is not known yet of the updates so far, and raise what is wrong."""


@dataclass(frozen=True)
class Every:
    """An action at regular intervals and at the end of a run, with the number of updates done."""

    action: Callable[[int], None]
    updates: int = 0
    """Updates between two calls; 0 here and in ``epochs`` for the end alone."""
    epochs: int = 0
    """Epochs between two calls, instead."""
    on_stop: bool = False
    """True if it also happens when the run is told to end early."""

    def is_due(self, update: int, epochs: EpochPlan) -> bool:
        """Return True if its interval ends after ``update`` finished updates."""
        if self.epochs:
            return (update - epochs.origin) % (self.epochs * epochs.updates_per_epoch) == 0
        return self.updates > 0 and update % self.updates == 0


@dataclass(frozen=True)
class Updates:
    """The updates that the loop makes, and what it calls next to the step."""

    schedule: Schedule
    total: int
    """The length of the run."""
    images: int
    """The global batch."""
    epochs: EpochPlan
    """Begins with the updates that an earlier run has finished. If these are all, the actions run
    and nothing is trained."""

    actions: Sequence[Every] = ()
    """Run in this order when due."""
    averages: Callable[[], Mapping[str, float]] = dict
    """Further numbers of a report; called when one is due."""
    stop: Callable[[], int] = lambda: 0
    """Asked after each update but the last, whether to end now: 0, or an exit status."""


@dataclass(frozen=True)
class Progress(Stateful):
    """The place of a run in its data, and the length of the run.

    Attributes:
        epoch_plan: where each update begins in the data.
        total_updates: the length of the run, with what has gone before.
        schedule_shift: what is added to an update before the schedule is asked.
        epochs_before: passes over the data since the schedule began; the same for all workers of
            a job, also where their epochs differ.
        first_epoch: the epoch with which the schedule began; above 0 if it is trained again.
    """

    epoch_plan: EpochPlan
    total_updates: int
    schedule_shift: int = 0
    epochs_before: float = 0.0
    first_epoch: int = 0

    @classmethod
    def plan(
        cls, config: ScheduleOptions, source: Loader, saved: Optional[Saved] = None
    ) -> Progress:
        """Plan a run from its beginning, or from the progress in a checkpoint.

        Raises:
            DataError: the checkpoint says something else.
        """
        if saved is None:
            return cls.from_position(config, source, 0, Position(0, 0))
        position = Position(saved.count("epoch"), saved.count("samples"))
        update, first_epoch = saved.count("update"), saved.count("first_epoch")
        return cls.from_position(config, source, update, position, first_epoch)

    @classmethod
    def from_position(
        cls,
        config: ScheduleOptions,
        source: Loader,
        update: int,
        position: Position,
        first_epoch: int = 0,
    ) -> Progress:
        """Plan a run from a position in the data on, after ``update`` updates."""
        epoch_plan = EpochPlan(source.num_images, source.global_batch, update, position)
        passed = (position.epoch - first_epoch) * source.updates_per_epoch
        passed += position.samples // source.global_batch
        epochs = passed / source.updates_per_epoch
        if config.epochs is None:
            total = config.total_updates(source.updates_per_epoch)
            return cls(epoch_plan, total, epochs_before=epochs)
        total = epoch_plan.first_update_of(first_epoch + config.epochs)
        return cls(epoch_plan, total, passed - update, epochs, first_epoch)

    def again(self, config: ScheduleOptions, source: Loader) -> Progress:
        """Plan the whole schedule from its beginning, after the updates and epochs of this one."""
        start = self.epoch_plan.start
        epoch = start.epoch + bool(start.samples)
        return self.from_position(config, source, self.start_update, Position(epoch, 0), epoch)

    def period_end(self, every: Optional[int]) -> int:
        """The update after which workers rebalance: when the epochs are a multiple of ``every``."""
        if every is None:
            return self.total_updates
        epoch = (self.epoch_plan.start.epoch // every + 1) * every
        return min(self.epoch_plan.first_update_of(epoch), self.total_updates)

    def from_epoch(self, config: ScheduleOptions, source: Loader) -> Progress:
        """Return the progress from the beginning of the same epoch, through other data."""
        start = Position(self.epoch_plan.start.epoch, 0)
        update = start.epoch * source.updates_per_epoch
        found = self.from_position(config, source, update, start, self.first_epoch)
        return replace(found, epochs_before=self.epochs_before)

    @property
    def start_update(self) -> int:
        """The update with which this run begins."""
        return self.epoch_plan.start_update

    @override
    def export_state(self, update: int) -> State:
        """``plan`` takes it."""
        position = self.epoch_plan.at(update)
        return State(
            values={
                "update": update,
                "epoch": position.epoch,
                "samples": position.samples,
                "global_batch": self.epoch_plan.global_batch,
                "total_updates": self.total_updates,
                "first_epoch": self.first_epoch,
            }
        )

    @override
    def load_state(self, saved: Saved) -> None:
        """``plan`` has taken everything."""


def fit(step: Step, batches: Iterator[Any], updates: Updates, log: RunLog) -> int:
    """Train until all updates are finished, or the ranks are told to end.

    ``batches`` are endless, from the first update on. Returns the status of ``updates.stop`` that
    has ended the run; 0 at its regular end.
    """
    start, total = updates.epochs.start_update, updates.total
    log.start(total, start)
    if start >= total:
        _log.info("update %d of %d is finished already: nothing to train", start, total)
        for every in updates.actions:
            with log.paused():
                every.action(start)
    batches = _prepared(step, batches, range(start + 1, total), log)
    for update in range(start, total):
        if log.reports(update + 1):
            # With nothing else under way, the parts of this update can be told apart.
            step.finish()
            log.stopwatch.begin_sample()
        with log.stopwatch.part(WAITING):
            batch = next(batches)
        lr = updates.schedule(update)
        loss = step(batch, update, lr)
        if log.reports(update + 1):
            step.finish()
        log.update(
            update + 1, loss=loss.asscalar, lr=lr, images=updates.images, averages=updates.averages
        )
        is_last = update + 1 == total
        status = 0 if is_last else updates.stop()
        if is_last or status:
            log.end_updates()
        for every in updates.actions:
            is_due = is_last or every.is_due(update + 1, updates.epochs)
            if is_due or (status and every.on_stop):
                # Nothing is saved of a run that has diverged.
                step.finish()
                with log.paused():
                    every.action(update + 1)
        if status:
            step.finish()
            _log.info("told to end: stopped after update %d of %d", update + 1, total)
            return status
    return 0


def _prepared(step: Step, batches: Iterator[Any], updates: range, log: RunLog) -> Iterator[Any]:
    """Yield the batches; the step is told of each one of ``updates`` one update before it."""
    batch = next(batches)
    if log.files is not None:
        log.files.sample(batch)
    for update in updates:
        following = next(batches)
        step.prepare(following, update)
        yield batch
        batch = following
    yield batch
