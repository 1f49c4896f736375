"""The learning rate as a pure function of the update.

A run that resumes, on any number of ranks, must continue at the rate it would have had. So no
schedule has state: the rate follows from the number of the update alone. Updates are numbered from
0: ``lr_at(0)`` is the rate of the first optimizer step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

SCHEDULES = ("step", "poly", "cosine")


class Schedule(Protocol):
    """The learning rate of each update."""

    def lr_at(self, update: int) -> float:
        """Return the learning rate of an update, counted from 0."""


@dataclass(frozen=True)
class StepSchedule(Schedule):
    """Falls to a tenth at each step, as the original ResNet and ArcFace recipes do."""

    lr: float
    steps: tuple[int, ...]
    factor: float = 0.1

    @override
    def lr_at(self, update: int) -> float:
        return self.lr * math.pow(self.factor, sum(update >= step for step in self.steps))


@dataclass(frozen=True)
class PolySchedule(Schedule):
    """Falls as a power of the remaining share of the run, to 0 at its end."""

    lr: float
    start: int
    stop: int
    power: float = 2.0

    @override
    def lr_at(self, update: int) -> float:
        return self.lr * math.pow(1.0 - _progress(update, self.start, self.stop), self.power)


@dataclass(frozen=True)
class CosineSchedule(Schedule):
    """Falls along half a cosine, to 0 at the end of the run.

    Source: Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5 with a single period.
    """

    lr: float
    start: int
    stop: int

    @override
    def lr_at(self, update: int) -> float:
        return self.lr * 0.5 * (1.0 + math.cos(math.pi * _progress(update, self.start, self.stop)))


@dataclass(frozen=True)
class WarmupSchedule(Schedule):
    """Rises linearly over the first updates, then follows another schedule.

    Source: Goyal et al. 2017, arXiv:1706.02677, section 2.2 (gradual warm-up).
    """

    after: Schedule
    warmup: int

    @override
    def lr_at(self, update: int) -> float:
        # The first one is already above 0.
        rise = (update + 1) / self.warmup if update < self.warmup else 1.0
        return rise * self.after.lr_at(update)


def build(
    name: str, *, lr: float, total_updates: int, warmup: int = 0, steps: Sequence[int] = ()
) -> Schedule:
    """Build a schedule.

    Args:
        name: one of ``SCHEDULES``.
        lr: the learning rate after warm-up.
        total_updates: the length of the run; ``poly`` and ``cosine`` reach 0 there.
        warmup: updates of linear warm-up, 0 for none; ``poly`` and ``cosine`` fall after it.
        steps: the updates at which ``step`` falls, counted from the start of the run.
    """
    assert name in SCHEDULES, name
    schedule: Schedule
    if name == "step":
        schedule = StepSchedule(lr, tuple(steps))
    elif name == "poly":
        schedule = PolySchedule(lr, warmup, total_updates)
    else:
        schedule = CosineSchedule(lr, warmup, total_updates)
    return WarmupSchedule(schedule, warmup) if warmup else schedule


def _progress(update: int, start: int, stop: int) -> float:
    """The share of the updates ``[start, stop)``, possibly none, that are finished: 0 to 1."""
    return min(max((update - start) / max(stop - start, 1), 0.0), 1.0)
