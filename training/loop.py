"""The training loop: batches in, updates, and what happens between them.

The loop knows neither faces nor classifiers. It is handed a step (one update on one batch) and
actions for what happens now and then, so that every kind of training shares its order of events,
its clock and its log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from data.batches.position import EpochPlan
from runtime.stopwatch import WAITING
from training.config.options import Schedule
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
