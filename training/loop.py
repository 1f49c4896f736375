"""The training loop: batches in, updates, and what happens between them.

The loop knows neither faces nor classifiers. It is handed a step (one update on one batch) and an
interlude for each thing that happens now and then, so that every kind of training shares its order
of events, its clock and its log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runtime.stopwatch import WAITING
from training.log.run_log import RunLog
from training.schedules import Schedule

_log = logging.getLogger(__name__)


class Step(Protocol):
    """One update on one batch."""

    def __call__(self, batch: Any, update: int, lr: float) -> Any:
        """Train on ``batch`` at learning rate ``lr``; returns the global batch's mean loss.

        The loss is an NDArray [1] that may still be computed.
        """

    @property
    def looks_ahead(self) -> bool:
        """Whether ``prepare`` does anything."""
        return False

    def prepare(self, batch: Any, update: int) -> None:
        """Begin what can be done for an update while the one before it is made."""
        return

    def finish(self) -> None:
        """Wait for what is not known yet of the updates so far, and raise what is wrong."""


@dataclass(frozen=True)
class Interlude:
    """Something that happens every so many updates, and at the end."""

    action: Callable[[int], None]
    """Called with the number of finished updates."""
    interval: int
    """Updates between two calls; 0 for the end alone."""

    on_stop: bool = False
    """Whether it also happens when the run is told to end early."""

    origin: int = 0
    """The update from which intervals are counted."""

    def is_due(self, update: int, total_updates: int) -> bool:
        """Whether it is time, after ``update`` finished updates."""
        past = update - self.origin
        return update == total_updates or (self.interval > 0 and past % self.interval == 0)


@dataclass(frozen=True)
class Updates:
    """The updates that the loop makes, and their learning rates."""

    schedule: Schedule
    total: int
    """The length of the run."""
    images: int
    """The global batch."""
    start: int = 0
    """Updates that an earlier run has finished. If that is all of them, the interludes run and
    nothing is trained."""


@dataclass(frozen=True)
class Hooks:
    """What the loop calls beside the step."""

    interludes: Sequence[Interlude] = ()
    """Run in this order when due."""
    averages: Callable[[], Mapping[str, float]] = dict
    """Further numbers of a report; called when one is due."""
    stop: Callable[[], int] = lambda: 0
    """Asked after each update but the last, whether to end now: 0, or an exit status."""


def fit(step: Step, batches: Iterator[Any], updates: Updates, log: RunLog, hooks: Hooks) -> int:
    """Train until all updates are finished, or the ranks are told to end.

    Args:
        step: one update.
        batches: endless, from update ``updates.start`` on.
        updates: how many, and their learning rates.
        log: told of every update.
        hooks: what happens beside them.

    Returns:
        The status of ``hooks.stop`` that has ended the run; 0 at its regular end.
    """
    total = updates.total
    log.start(total, updates.start)
    if updates.start >= total:
        _log.info("update %d of %d is finished already: nothing to train", updates.start, total)
        for interlude in hooks.interludes:
            with log.paused():
                interlude.action(updates.start)
    batches = _prepared(step, batches, updates)
    for update in range(updates.start, total):
        if log.reports(update + 1):
            # With nothing else under way, the parts of this update can be told apart.
            step.finish()
            log.stopwatch.begin_sample()
        with log.stopwatch.part(WAITING):
            batch = next(batches)
        lr = updates.schedule.lr_at(update)
        loss = step(batch, update, lr)
        if log.reports(update + 1):
            step.finish()
        log.update(
            update + 1, loss=loss.asscalar, lr=lr, images=updates.images, averages=hooks.averages
        )
        is_last = update + 1 == total
        status = 0 if is_last else hooks.stop()
        if is_last or status:
            log.end_updates()
        for interlude in hooks.interludes:
            if interlude.is_due(update + 1, total) or (status and interlude.on_stop):
                # Nothing is saved of a run that has diverged.
                step.finish()
                with log.paused():
                    interlude.action(update + 1)
        if status:
            step.finish()
            _log.info("told to end: stopped after update %d of %d", update + 1, total)
            return status
    return 0


def _prepared(step: Step, batches: Iterator[Any], updates: Updates) -> Iterator[Any]:
    """The batches; a step that looks ahead is told of each one update before its own."""
    if not step.looks_ahead:
        yield from batches
        return
    batch = next(batches)
    for update in range(updates.start + 1, updates.total):
        following = next(batches)
        step.prepare(following, update)
        yield batch
        batch = following
    yield batch
