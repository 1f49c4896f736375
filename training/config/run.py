"""The options of logs, saves, verification and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from runtime.errors import ConfigError
from runtime.options import COUNT, POSITIVE, POSITIVE_COUNT, Options, Range, name, number, with_bare

ON_NAN = ("stop", "skip")
AUTO, NEVER, ANYWAY = "auto", "never", "anyway"


class Auto(str):
    """``AUTO``, with what was asked for once: a ``config.json`` has it as the plain word.

    Attributes:
        again: typed together with ``--lr``, as in the CIFAR-10 tutorial.
        anyway: typed as ``ANYWAY``.
    """

    again: bool
    anyway: bool

    def __new__(cls, *, again: bool = False, anyway: bool = False) -> Auto:
        """Return the word."""
        word = super().__new__(cls, AUTO)
        word.again, word.anyway = again, anyway
        return word


_LONGEST_NAME = 100
_SAVES = COUNT.saying("must not be negative; 0 saves only at the end")


@dataclass(frozen=True)
class RunOptions(Options):
    """The run: logs, saves, checkpoints."""

    frequent: int = number(20, POSITIVE_COUNT)
    """Updates between log lines."""

    keep: int = number(2, COUNT.saying("must not be negative; 0 writes no checkpoints"))
    """Checkpoints that are kept, the newest ones; 0 writes none."""

    resume: str = with_bare(AUTO, bare=AUTO)
    """Resume from the newest checkpoint in --models-root (auto; with anyway also if it was trained
    on other images), from none (never) or from PATH. In classify.py, --resume with another --lr
    than that of a finished run trains its schedule again, from its best network."""

    stall_timeout: int = number(
        600, POSITIVE_COUNT.saying("must be at least 1 second; several times the longest update")
    )
    """Seconds without progress in an update that end the run; six times that between updates."""

    models_root: str = ""
    """Folder for the model, checkpoints, logs and metrics; ./models/DATA-NETWORK unless given."""

    # MXNet and NumPy's legacy generators take 32 bits.
    seed: int = number(1, Range(lambda value: 0 <= value < 2**32, "must be from 0 to 4294967295"))
    """Seed of initial values, shuffling, augmentation and negatives."""

    @property
    def takes_other_images(self) -> bool:
        """True if the run goes on from a checkpoint that was trained on other images."""
        return self.resume.anyway if isinstance(self.resume, Auto) else self.resume != AUTO


@dataclass(frozen=True)
class FaceRunOptions(RunOptions):
    """The run: logs, verification, saves, checkpoints."""

    verbose: int = number(2000, POSITIVE_COUNT)
    """Updates between verifications."""

    save_interval: int = number(2000, _SAVES)
    """Updates between saves of the model and checkpoints; 0 saves only at the end."""

    best: Optional[str] = None
    """Verification set whose accuracy chooses the model in model-best-*; the mean of all sets
    unless given. Of equal models the earlier stays."""

    on_nan: str = name("stop", ON_NAN)
    """At a loss or gradient that is not finite: stop, or skip that update."""


@dataclass(frozen=True)
class ImageRunOptions(RunOptions):
    """The run: logs, validation, saves, checkpoints."""

    eval_frequency: int = number(1, POSITIVE_COUNT)
    """Epochs between validations."""

    save_frequency: int = number(1, _SAVES)
    """Epochs between saves of the model and checkpoints; 0 saves only at the end."""


@dataclass(frozen=True)
class PlanOptions(Options):
    """A plan instead of a run."""

    dry_run: bool = False
    """Print memory and bytes per collective for --world-size ranks, and stop."""

    world_size: Optional[int] = number(None, POSITIVE_COUNT)
    """Ranks to plan for with --dry-run; 1 unless given."""

    json: bool = False
    """With --dry-run: print the plan as JSON, for other programs."""

    def check(self) -> None:
        """Refuse what a run finds out by itself: its ranks."""
        if self.json and not self.dry_run:
            raise _goes_with_dry_run("--json")
        if self.world_size is not None and not self.dry_run:
            raise ConfigError(
                f"--world-size {self.world_size} goes with --dry-run; "
                f"a run's ranks come from the launcher: horovodrun -np {self.world_size} ..."
            )


@dataclass(frozen=True)
class DryRunOptions(PlanOptions):
    """A plan instead of a run."""

    dry_run: bool = False
    """Print shards, memory, bytes per collective and the most classes that fit for --world-size
    ranks, and stop. No data is read: --num-classes (and --num-images, for the epochs) say how much
    there is."""

    gpu: bool = False
    """With --dry-run: the memory of a rank on a GPU instead of that on a CPU."""

    memory: Optional[float] = number(None, POSITIVE.saying("must be above 0 GiB"))
    """With --dry-run: GiB that a rank may take, for the largest number of classes; this machine's
    share for one of its ranks unless given."""

    def check(self) -> None:
        """Refuse what a run finds out by itself: its ranks and its devices."""
        super().check()
        if self.memory and not self.dry_run:
            raise _goes_with_dry_run(f"--memory {self.memory:g}")
        if self.gpu and not self.dry_run:
            raise ConfigError(
                "--gpu goes with --dry-run; a run computes on the GPUs of its hosts by itself"
            )


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


def _goes_with_dry_run(given: str) -> ConfigError:
    return ConfigError(f"{given} goes with --dry-run, which plans a run and starts none")
