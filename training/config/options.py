"""The options of a run: optimizer, learning rate and length, logs, saves and checkpoints, its plan.

The learning rate is a pure function of the update. A run that resumes, on any number of ranks, must
continue at the rate it would have had. So no schedule has state: the rate follows from the number
of the update alone. Updates are numbered from 0: that of 0 is the rate of the first optimizer step.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from typing_extensions import override

from runtime.errors import ConfigError
from runtime.options import (
    COUNT,
    POSITIVE,
    POSITIVE_COUNT,
    Options,
    Range,
    name,
    number,
    option,
    with_bare,
)

AUTO, NEVER, ANYWAY, AGAIN = "auto", "never", "anyway", "again"
_LONGEST_NAME = 100
STEP, POLY, COSINE = SCHEDULES = ("step", "poly", "cosine")
Schedule = Callable[[int], float]
"""Returns the learning rate of an update, counted from 0."""

_A_FACTOR = Range(lambda value: 0 < value <= 1, "must be above 0 and at most 1; 1 keeps the rate")
RIVALS = (("lr_schedule", "lr_factor"), ("lr_steps", "lr_factor"), ("lr_factor", "lr_steps"))
"""Pairs of options: the first, where it is given, replaces a recipe's second."""


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """Optimizer."""

    # train.py has an option for it.
    optimizer = "sgd"

    momentum: float = number(0.9, Range(lambda value: 0 <= value < 1, "must be from 0 to below 1"))
    """Momentum of SGD."""

    wd: float = number(5e-4, COUNT)
    """Weight decay (not of biases, not of BatchNorm); 0 is off."""

    clip_norm: Optional[float] = number(None, POSITIVE)
    """Largest norm of the network's gradient, all parameters together; a larger one is shortened to
    it. Class centers are not part of it. Off unless given; arcface_torch has 5."""


@dataclass(frozen=True)
class ScheduleOptions(Options):
    """Learning rate and length of the run."""

    lr: float = number(0.1, POSITIVE)
    """Learning rate of the network after warm-up."""

    lr_schedule: str = name("poly", SCHEDULES)
    """Fall of the learning rate: step (at each of --lr-steps), poly or cosine."""

    lr_steps: tuple[int, ...] = ()
    """Where the step schedule falls, as in 10000,16000: updates for faces, epochs for images."""

    lr_factor: Optional[float] = number(None, _A_FACTOR)
    """Factor of step, 0.1 unless given. Without --lr-steps the rate falls by it after every epoch:
    0.94 as in Grouping-SGD's scripts, or 1 for a constant rate. Implies --lr-schedule step."""

    lr_power: float = number(2.0, POSITIVE)
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
                "--lr-schedule step does not fall without steps: add --lr-steps, as in 30,60,80, "
                "or --lr-factor for a fall after every epoch"
            )
        rising = sorted(set(self.lr_steps))
        if any(step < 1 for step in self.lr_steps) or list(self.lr_steps) != rising:
            raise ConfigError(
                f"--lr-steps {','.join(map(str, self.lr_steps))} must be positive and rise, as in "
                "30,60,80"
            )

    def total_updates(self, updates_per_epoch: int) -> int:
        """The length of the run in updates."""
        assert self.epochs is not None, "check() lets no run without a length pass"
        return self.epochs * updates_per_epoch

    def _falling(
        self, peak: float, warmup: int, steps: Sequence[int], updates_per_epoch: int
    ) -> Schedule:
        """Return a learning rate that rises linearly to the peak and then falls in one of 3 ways.

        Warm-up, in updates: Goyal et al. 2017, arXiv:1706.02677, section 2.2. Step: by a factor at
        each step, a tenth in the original ResNet and ArcFace recipes. Poly: as a power of the
        remaining share of the run. Cosine: along half a cosine; Loshchilov and Hutter 2017,
        arXiv:1608.03983, equation 5 with a single period.
        """
        total = self.total_updates(updates_per_epoch)
        falls = steps or range(updates_per_epoch, total, updates_per_epoch)
        factor = 0.1 if self.lr_factor is None else self.lr_factor

        def rate(update: int) -> float:
            # The first one is already above 0.
            rise = (update + 1) / warmup if update < warmup else 1.0
            if self.lr_schedule == STEP:
                return rise * (peak * math.pow(factor, sum(update >= step for step in falls)))
            # The warm-up may be longer than the run.
            progress = min(max((update - warmup) / max(total - warmup, 1), 0.0), 1.0)
            if self.lr_schedule == POLY:
                return rise * (peak * math.pow(1.0 - progress, self.lr_power))
            return rise * (peak * 0.5 * (1.0 + math.cos(math.pi * progress)))

        return rate


def with_schedule(given: Mapping[str, Any]) -> dict[str, Any]:
    """Add the schedule that ``--lr-factor`` implies to the options of a command line, by field."""
    return {"lr_schedule": STEP, **given} if "lr_factor" in given else dict(given)


@dataclass(frozen=True)
class FaceScheduleOptions(ScheduleOptions):
    """Learning rate and length of the run."""

    warmup: int = number(0, COUNT)
    """Updates of linear warm-up."""

    max_update: Optional[int] = number(None, POSITIVE_COUNT)
    """Length of the run in updates; instead of --epochs."""

    @override
    def check(self) -> None:
        """Refuse a missing or contradictory length, and wrong steps."""
        if (self.max_update is None) == (self.epochs is None):
            raise ConfigError(
                f"the length of the run is --max-update {self.max_update} and --epochs "
                f"{self.epochs}; give one of them"
            )
        super().check()

    def build(self, contributors: int, updates_per_epoch: int) -> Schedule:
        """Return the learning rate by update, the same for any number of ``contributors``."""
        return self._falling(self.lr, self.warmup, self.lr_steps, updates_per_epoch)

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

    warmup_epochs: float = number(0.0, COUNT)
    """Epochs of linear warm-up."""

    def build(self, contributors: int, updates_per_epoch: int) -> Schedule:
        """Return the learning rate by update of the weights.

        Args:
            contributors: ranks whose batches make one update.
            updates_per_epoch: with parameter servers those of all workers.
        """
        # Linear scaling: Goyal et al., arXiv:1706.02677.
        peak = self.lr if self.no_lr_scaling else self.lr * contributors
        steps = [step * updates_per_epoch for step in self.lr_steps]
        warmup = round(self.warmup_epochs * updates_per_epoch)
        return self._falling(peak, warmup, steps, updates_per_epoch)


@dataclass(frozen=True)
class RunOptions(Options):
    """The run: logs, saves, checkpoints."""

    frequent: int = number(20, POSITIVE_COUNT)
    """Updates between log lines."""

    keep: int = number(2, COUNT)
    """Checkpoints that are kept, the newest ones; 0 writes none."""

    resume: str = with_bare(AUTO, bare=AUTO)
    """Resume from the newest checkpoint in --models-root (auto; with anyway also if it was trained
    on other images), from none (never) or from PATH. In classify.py, --resume with another --lr
    than that of a finished run trains its schedule again, from its best network."""

    stall_timeout: int = number(600, POSITIVE_COUNT)
    """Seconds without progress in an update that end the run; six times that between updates."""

    models_root: str = ""
    """Folder for the model, checkpoints, logs and metrics; ./models/DATA-NETWORK unless given."""

    # MXNet and NumPy's legacy generators take 32 bits.
    seed: int = number(1, Range(lambda value: 0 <= value < 2**32, "must be from 0 to 4294967295"))
    """Seed of initial values, shuffling, augmentation and negatives."""

    @property
    def checkpoint(self) -> str:
        """``AUTO``, ``NEVER``, or the folder of a checkpoint: what a ``config.json`` has."""
        return AUTO if self.resume in (AGAIN, ANYWAY) else self.resume

    @property
    def takes_other_images(self) -> bool:
        """True if the run goes on from a checkpoint that was trained on other images."""
        return self.resume not in (AUTO, AGAIN)


@dataclass(frozen=True)
class FaceRunOptions(RunOptions):
    """The run: logs, verification, saves, checkpoints."""

    verbose: int = number(2000, POSITIVE_COUNT)
    """Updates between verifications."""

    save_interval: int = number(2000, COUNT)
    """Updates between saves of the model and checkpoints; 0 saves only at the end."""

    best: Optional[str] = None
    """Verification set whose accuracy chooses the model in model-best-*; the mean of all sets
    unless given. Of equal models the earlier stays."""

    on_nan: str = name("stop", ("stop", "skip"))
    """At a loss or gradient that is not finite: stop, or skip that update."""


@dataclass(frozen=True)
class ImageRunOptions(RunOptions):
    """The run: logs, validation, saves, checkpoints."""

    eval_frequency: int = number(1, POSITIVE_COUNT)
    """Epochs between validations."""

    save_frequency: int = number(1, COUNT)
    """Epochs between saves of the model and checkpoints; 0 saves only at the end."""


@dataclass(frozen=True)
class PlanOptions(Options):
    """A plan instead of a run."""

    dry_run: bool = False
    """Print memory and bytes per collective for --world-size ranks, and stop; train.py reads no
    data for it, and needs --num-classes."""

    world_size: Optional[int] = number(None, POSITIVE_COUNT)
    """Ranks to plan for with --dry-run; 1 unless given."""

    json: bool = False
    """With --dry-run: print the plan as JSON, for other programs."""

    def check(self) -> None:
        """Refuse what a run has no use for: it finds out about its ranks and devices by itself."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default and not self.dry_run:
                raise ConfigError(
                    f"{option(field.name)} goes with --dry-run, which plans a run; a run has the "
                    "ranks that its launcher starts, as in horovodrun -np 8"
                )


@dataclass(frozen=True)
class DryRunOptions(PlanOptions):
    """A plan instead of a run."""

    gpu: bool = False
    """With --dry-run: the memory of a rank on a GPU instead of that on a CPU."""

    memory: Optional[float] = number(None, POSITIVE)
    """With --dry-run: GiB that a rank may take, for the largest number of classes; this machine's
    share for one of its ranks unless given."""


def default_folder(data: Sequence[str], network: str) -> str:
    """The folder of a run that is given none; ``data`` is a preset, or folders of record sets.

    So several data sets and networks can be tried without an option, and each run resumes from its
    own checkpoints.
    """
    names = "+".join(map(_name, data))
    return f"./models/{names[:_LONGEST_NAME]}-{network}"


def _name(folder: str) -> str:
    path = Path(os.path.abspath(folder))
    # Also the record file in a folder may be given.
    return (path.parent.name if path.suffix == ".rec" else path.name) or "data"
