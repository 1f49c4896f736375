"""The learning rate as a pure function of the update.

A run that resumes, on any number of ranks, must continue at the rate it would have had. So no
schedule has state: the rate follows from the number of the update alone. Updates are numbered from
0: that of 0 is the rate of the first optimizer step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

STEP, POLY, COSINE = SCHEDULES = ("step", "poly", "cosine")


Schedule = Callable[[int], float]
"""Returns the learning rate of an update, counted from 0."""


@dataclass(frozen=True)
class WarmupAndDecay:
    """Rises linearly to ``lr`` and then falls, in one of three ways.

    Warm-up: Goyal et al. 2017, arXiv:1706.02677, section 2.2. Step: by a factor at each step, a
    tenth in the original ResNet and ArcFace recipes. Poly: as a power of the remaining share of the
    run. Cosine: along half a cosine; Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5 with
    a single period.
    """

    decay: str
    """One of ``SCHEDULES``."""
    lr: float
    """The learning rate after warm-up."""
    total_updates: int
    """The length of the run; poly and cosine reach 0 there."""
    warmup: int = 0
    """Updates of warm-up, 0 for none; poly and cosine fall after it."""
    steps: Sequence[int] = ()
    """The updates at which step falls, counted from the start of the run."""
    factor: float = 0.1
    """Factor of the rate at each of these."""
    power: float = 2.0
    """The power of poly."""

    def __call__(self, update: int) -> float:
        """Return the learning rate of an update."""
        # The first one is already above 0.
        rise = (update + 1) / self.warmup if update < self.warmup else 1.0
        return rise * self._decayed(update)

    def _decayed(self, update: int) -> float:
        if self.decay == STEP:
            return self.lr * math.pow(self.factor, sum(update >= step for step in self.steps))
        # The warm-up may be longer than the run.
        decaying = max(self.total_updates - self.warmup, 1)
        progress = min(max((update - self.warmup) / decaying, 0.0), 1.0)
        if self.decay == POLY:
            return self.lr * math.pow(1.0 - progress, self.power)
        assert self.decay == COSINE, self.decay
        return self.lr * 0.5 * (1.0 + math.cos(math.pi * progress))
