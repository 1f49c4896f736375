"""The options of logs, saves, verification and checkpoints."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

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
