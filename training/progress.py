"""How far a run has come, and how long it still is.

A run that goes on with another global batch has to say what its numbers mean from there on. What
is given in updates (--max-update, --warmup, --lr-steps) counts updates, whatever their size. A
length in epochs counts passes over the data: the run ends after those that are left, and the
learning rate is the one that a run with this global batch would have at the same place.

A run that is finished may train its schedule again (``Progress.again``): updates and epochs count
on, the schedule starts from its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Optional

from typing_extensions import override

from data.batches.loader import Loader
from data.batches.position import EpochPlan, Position
from runtime.state import Saved, State, Stateful
from training.config.options import ScheduleOptions


@dataclass(frozen=True)
class Progress(Stateful):
    """Where a run begins in its data, and how long it is.

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
