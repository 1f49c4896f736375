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

from training.log.run_log import RunLog
from training.log.stopwatch import WAITING
from training.schedules import Schedule

_log = logging.getLogger(__name__)


class Step(Protocol):
    """One update on one batch."""

    def __call__(self, batch: Any, update: int, lr: float) -> Any:
        """Train on ``batch`` at learning rate ``lr``; returns the global batch's mean loss.

        The loss is an NDArray [1] that nobody has waited for.
        """


@dataclass(frozen=True)
class Interlude:
    """Something that happens every so many updates, and at the end."""

    action: Callable[[int], None]
    """Called with the number of finished updates."""
    interval: int
    """Updates between two calls; 0 for the end alone."""

    on_stop: bool = False
    """Whether it happens, too, when the run is told to end early."""

    origin: int = 0
    """The update from which intervals are counted."""

    def is_due(self, update: int, total_updates: int) -> bool:
        """Whether it is time, after ``update`` finished updates."""
        past = update - self.origin
        return update == total_updates or (self.interval > 0 and past % self.interval == 0)


def fit(
    step: Step,
    batches: Iterator[Any],
    schedule: Schedule,
    log: RunLog,
    *,
    total_updates: int,
    images_per_update: int,
    start_update: int = 0,
    averages: Callable[[], Mapping[str, float]] = dict,
    interludes: Sequence[Interlude] = (),
    stop: Callable[[], int] = lambda: 0,
) -> int:
    """Train until ``total_updates`` updates are finished, or the ranks are told to end.

    Args:
        step: one update.
        batches: endless, from ``start_update`` on.
        schedule: the learning rate by update.
        log: told of every update.
        total_updates: the length of the run.
        images_per_update: the global batch.
        start_update: the number of updates that an earlier run has finished. If that is all of
            them, the interludes have their turn and nothing is trained.
        averages: further numbers of a report; called when one is due.
        interludes: run in this order when due.
        stop: asked after each update but the last, whether to end now: 0, or an exit status.

    Returns:
        The status of ``stop`` that has ended the run; 0 at its regular end.
    """
    log.start(total_updates, start_update)
    if start_update >= total_updates:
        _log.info(
            "update %d of %d is finished already: nothing to train", start_update, total_updates
        )
        for interlude in interludes:
            with log.paused():
                interlude.action(start_update)
    for update in range(start_update, total_updates):
        with log.stopwatch.part(WAITING):
            batch = next(batches)
        lr = schedule.lr_at(update)
        loss = step(batch, update, lr)
        log.update(
            update + 1, loss=loss.asscalar, lr=lr, images=images_per_update, averages=averages
        )
        is_last = update + 1 == total_updates
        status = 0 if is_last else stop()
        if is_last or status:
            log.end_updates()
        for interlude in interludes:
            if interlude.is_due(update + 1, total_updates) or (status and interlude.on_stop):
                with log.paused():
                    interlude.action(update + 1)
        if status:
            _log.info("told to end: stopped after update %d of %d", update + 1, total_updates)
            return status
    return 0
