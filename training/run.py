"""The beginning of a run: anew, or from the checkpoint of an earlier one.

Faces and classifiers alike look for a checkpoint, plan their way through the data from there, give
every part of training what it remembered, and prepare the checkpoints to come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from parallel.world import World
from training import config as configuration
from training import resume
from training.checkpointer import Checkpointer
from training.leg import Leg
from training.progress import Length, Progress, Source
from training.state import Stateful

_FIRST = Leg()


class RunConfig(Length, Protocol):
    """What is asked of a configuration, beside the length of the run."""

    @property
    def models_root(self) -> str:
        """Folder of the run."""

    @property
    def resume(self) -> str:
        """Auto, never, or the folder of a checkpoint."""

    @property
    def keep(self) -> int:
        """Checkpoints that stay."""


@dataclass(frozen=True)
class Run:
    """A run that can begin.

    Attributes:
        progress: its way through the data.
        checkpointer: saves its parts; to be used as a context manager.
        is_new: whether it goes on from no checkpoint.
    """

    progress: Progress
    checkpointer: Checkpointer
    is_new: bool


def begin(
    config: RunConfig,
    values: Mapping[str, Any],
    parts: Mapping[str, Stateful],
    source: Source,
    world: World,
    *,
    num_classes: int,
    image_size: tuple[int, int],
    fixed: Sequence[str],
    saves: bool = True,
    leg: Leg = _FIRST,
) -> Run:
    """Find out where the run begins, and give its parts what they remembered.

    Args:
        config: the configuration.
        values: the same as JSON has it; rank 0 writes it into the folder of the run.
        parts: what a checkpoint holds, by name; the progress is added.
        source: the batches.
        world: the ranks, which have to come here together.
        num_classes: of the data.
        image_size: height and width.
        fixed: the options that no run that goes on may change.
        saves: whether these ranks write checkpoints. Others, whose data is another, go on from
            those at the beginning of the epoch.
        leg: any but the first goes on where it says, and no checkpoint is looked for.

    Raises:
        ConfigError: the checkpoint belongs to another model.
        DataError: the checkpoint is broken, or no other could be written.
    """
    models_root = Path(config.models_root)
    about = resume.describe(values, num_classes=num_classes, image_size=image_size, fixed=fixed)
    saved = None
    if leg == _FIRST:
        saved = resume.find(config.resume, models_root, about, world)
        progress = Progress.plan(config, source, saved.section("progress") if saved else None)
        if not saves:
            progress = progress.from_epoch(source)
    else:
        progress = Progress.onward(config, source, leg)
    parts = {**parts, "progress": progress}
    if saved:
        saved.restore(parts)
    if saves and world.rank == 0:
        configuration.write(values, models_root / "config.json")
    checkpointer = Checkpointer(
        parts,
        world,
        models_root,
        keep=config.keep if saves else 0,
        about=about,
        resumed=saved.path if saved else None,
    )
    checkpointer.rehearse(progress.start_update)
    return Run(progress, checkpointer, is_new=saved is None)
