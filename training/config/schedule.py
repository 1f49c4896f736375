"""The options of the learning rate, of the length of a run, and of the optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from typing_extensions import override

from runtime.errors import ConfigError
from runtime.options import COUNT, POSITIVE, POSITIVE_COUNT, Options, Range, name, number
from training.schedules import SCHEDULES, STEP, Schedule, WarmupAndDecay

_A_FACTOR = Range(lambda value: 0 < value <= 1, "must be above 0 and at most 1; 1 keeps the rate")
RIVALS = (("lr_schedule", "lr_factor"), ("lr_steps", "lr_factor"), ("lr_factor", "lr_steps"))
"""Pairs of options: the first, where it is given, replaces a recipe's second."""


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """Optimizer."""

    momentum: float = number(
        0.9, Range(lambda value: 0 <= value < 1, "must be from 0 to below 1; 0.9 is usual")
    )
    """Momentum of SGD."""

    wd: float = number(5e-4, COUNT.saying("must not be negative; 0 turns weight decay off"))
    """Weight decay (not of biases, not of BatchNorm)."""

    clip_norm: Optional[float] = number(
        None, POSITIVE.saying("must be above 0; arcface_torch clips at 5")
    )
    """Largest norm of the network's gradient, all parameters together; a larger one is shortened to
    it. Class centers are not part of it. Off unless given; arcface_torch has 5."""

    @property
    def rule(self) -> str:
        """The name of the optimizer."""
        return "sgd"


@dataclass(frozen=True)
class ScheduleOptions(Options):
    """Learning rate and length of the run."""

    EXAMPLE_STEPS: ClassVar[str] = "30,60,80"

    lr: float = number(0.1, POSITIVE.saying("must be above 0; 0.1 is usual for 512 images"))
    """Learning rate of the network after warm-up."""

    lr_schedule: str = name("poly", SCHEDULES)
    """Fall of the learning rate: step (at each of --lr-steps), poly or cosine."""

    lr_steps: tuple[int, ...] = ()
    """Where the step schedule falls, as in 10000,16000: updates for faces, epochs for images."""

    lr_factor: Optional[float] = number(None, _A_FACTOR)
    """Factor of step, 0.1 unless given. Without --lr-steps the rate falls by it after every epoch:
    0.94 as in Grouping-SGD's scripts, or 1 for a constant rate. Implies --lr-schedule step."""

    lr_power: float = number(2.0, POSITIVE.saying("must be above 0; 1 falls in a straight line"))
    """Power of poly: 2 as in MXNet's example for ImageNet, 1 in InsightFace's arcface_torch."""

    epochs: Optional[int] = number(None, POSITIVE_COUNT)
    """Length of the run in epochs."""

    def check(self) -> None:
        """Refuse steps that are missing or out of order."""
        if self.lr_factor is not None and self.lr_schedule != STEP:
            raise ConfigError(
                f"--lr-factor {self.lr_factor:g} goes with --lr-schedule step, not with "
                f"{self.lr_schedule}; leave one out"
            )
        if self.lr_schedule == STEP and not self.lr_steps and self.lr_factor is None:
            raise ConfigError(
                "--lr-schedule step does not fall without steps: add --lr-steps, as in "
                f"{self.EXAMPLE_STEPS}, or --lr-factor for a fall after every epoch"
            )
        rising = sorted(set(self.lr_steps))
        if any(step < 1 for step in self.lr_steps) or list(self.lr_steps) != rising:
            raise ConfigError(
                f"--lr-steps {','.join(map(str, self.lr_steps))} must be positive and rise, as in "
                f"{self.EXAMPLE_STEPS}"
            )

    def total_updates(self, updates_per_epoch: int) -> int:
        """The length of the run in updates."""
        assert self.epochs is not None, "check() lets no run without a length pass"
        return self.epochs * updates_per_epoch

    def build(self, contributors: int, updates_per_epoch: int) -> Schedule:
        """Return the learning rate by update of the weights.

        Args:
            contributors: ranks whose batches make one update.
            updates_per_epoch: with parameter servers those of all workers.
        """
        total_updates = self.total_updates(updates_per_epoch)
        lr, warmup, steps = self._in_updates(contributors, updates_per_epoch)
        return WarmupAndDecay(
            self.lr_schedule,
            lr=lr,
            total_updates=total_updates,
            warmup=warmup,
            steps=steps or range(updates_per_epoch, total_updates, updates_per_epoch),
            factor=0.1 if self.lr_factor is None else self.lr_factor,
            power=self.lr_power,
        )

    def _in_updates(
        self, contributors: int, updates_per_epoch: int
    ) -> tuple[float, int, Sequence[int]]:
        """Learning rate, updates of warm-up, and updates at which it falls."""
        raise NotImplementedError


def with_schedule(given: Mapping[str, Any]) -> dict[str, Any]:
    """Add the schedule that ``--lr-factor`` implies to the options of a command line, by field."""
    return {"lr_schedule": STEP, **given} if "lr_factor" in given else dict(given)


@dataclass(frozen=True)
class FaceScheduleOptions(ScheduleOptions):
    """Learning rate and length of the run."""

    EXAMPLE_STEPS = "10000,16000"

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

    @override
    def _in_updates(
        self, contributors: int, updates_per_epoch: int
    ) -> tuple[float, int, Sequence[int]]:
        # The same for any number of ranks.
        return self.lr, self.warmup, self.lr_steps

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

    @override
    def _in_updates(
        self, contributors: int, updates_per_epoch: int
    ) -> tuple[float, int, Sequence[int]]:
        # Linear scaling: Goyal et al., arXiv:1706.02677.
        lr = self.lr if self.no_lr_scaling else self.lr * contributors
        steps = [step * updates_per_epoch for step in self.lr_steps]
        return lr, round(self.warmup_epochs * updates_per_epoch), steps
