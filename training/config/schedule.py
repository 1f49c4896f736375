"""The options of the learning rate, of the length of a run, and of the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from typing_extensions import override

from runtime.errors import ConfigError
from runtime.options import COUNT, POSITIVE, POSITIVE_COUNT, Options, Range, name, number
from training.schedules import SCHEDULES, STEP, Schedule, WarmupAndDecay


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """Optimizer."""

    momentum: float = number(
        0.9, Range(lambda value: 0 <= value < 1, "must be from 0 to below 1; 0.9 is usual")
    )
    """Momentum of SGD."""

    wd: float = number(5e-4, COUNT.saying("must not be negative; 0 turns weight decay off"))
    """Weight decay (not of biases, not of BatchNorm)."""

    @property
    def rule(self) -> str:
        """The name of the optimizer."""
        return "sgd"


@dataclass(frozen=True)
class ScheduleOptions(Options):
    """Learning rate and length of the run."""

    lr: float = number(0.1, POSITIVE.saying("must be above 0; 0.1 is usual for 512 images"))
    """Learning rate of the network after warm-up."""

    lr_schedule: str = name("poly", SCHEDULES)
    """Fall of the learning rate: step (a tenth at each of --lr-steps), poly (power 2), cosine."""

    lr_steps: tuple[int, ...] = ()
    """Where the step schedule falls, as in 10000,16000: updates for faces, epochs for images."""

    epochs: Optional[int] = number(None, POSITIVE_COUNT)
    """Length of the run in epochs."""

    def check(self) -> None:
        """Refuse steps that are missing or out of order."""
        if self.lr_schedule == STEP and not self.lr_steps:
            raise ConfigError(
                "--lr-schedule step does not fall without steps: add --lr-steps, as in "
                f"{_steps(self.example_steps)}"
            )
        rising = sorted(set(self.lr_steps))
        if any(step < 1 for step in self.lr_steps) or list(self.lr_steps) != rising:
            raise ConfigError(
                f"--lr-steps {_steps(self.lr_steps)} must be positive and rise, as in "
                f"{_steps(self.example_steps)}"
            )

    @property
    def example_steps(self) -> tuple[int, ...]:
        """Steps for an error message."""
        return (30, 60, 80)

    def total_updates(self, updates_per_epoch: int) -> int:
        """The length of the run in updates."""
        assert self.epochs is not None, "check() lets no run without a length pass"
        return self.epochs * updates_per_epoch


@dataclass(frozen=True)
class FaceScheduleOptions(ScheduleOptions):
    """Learning rate and length of the run."""

    warmup: int = number(0, COUNT.saying("must not be negative; 0 turns warm-up off"))
    """Updates of linear warm-up."""

    max_update: Optional[int] = number(None, POSITIVE_COUNT)
    """Length of the run in updates; instead of --epochs."""

    @override
    def check(self) -> None:
        """Refuse a missing or contradictory length, and wrong steps."""
        if self.max_update is None and self.epochs is None:
            raise ConfigError("the length of the run is missing: give --max-update or --epochs")
        if self.max_update is not None and self.epochs is not None:
            raise ConfigError(
                f"--max-update {self.max_update} and --epochs {self.epochs} "
                "both give the length of the run; leave one out"
            )
        super().check()

    @property
    @override
    def example_steps(self) -> tuple[int, ...]:
        return (10_000, 16_000)

    def build(self, contributors: int, updates_per_epoch: int) -> Schedule:
        """The learning rate of the backbone by update; the same for any number of ranks."""
        total_updates = self.total_updates(updates_per_epoch)
        return WarmupAndDecay(self.lr_schedule, self.lr, total_updates, self.warmup, self.lr_steps)

    @override
    def total_updates(self, updates_per_epoch: int) -> int:
        if self.max_update is not None:
            return self.max_update
        return super().total_updates(updates_per_epoch)


@dataclass(frozen=True)
class ImageScheduleOptions(ScheduleOptions):
    """Learning rate and length of the run."""

    no_lr_scaling: bool = False
    """Take --lr as it is; otherwise it is multiplied by the ranks that make an update."""

    warmup_epochs: float = number(0.0, COUNT.saying("must not be negative; 0 turns warm-up off"))
    """Epochs of linear warm-up."""

    def build(self, contributors: int, updates_per_epoch: int) -> Schedule:
        """The learning rate by update of the weights.

        Args:
            contributors: ranks whose batches make one update; the learning rate grows with them
                (linear scaling: Goyal et al., arXiv:1706.02677).
            updates_per_epoch: with parameter servers those of all workers.
        """
        return WarmupAndDecay(
            self.lr_schedule,
            lr=self.lr if self.no_lr_scaling else self.lr * contributors,
            total_updates=self.total_updates(updates_per_epoch),
            warmup=round(self.warmup_epochs * updates_per_epoch),
            steps=[step * updates_per_epoch for step in self.lr_steps],
        )


def _steps(steps: Sequence[int]) -> str:
    return ",".join(map(str, steps))
