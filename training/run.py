"""The beginning of a run: anew, or from the checkpoint of an earlier one.

Faces and classifiers alike look for a checkpoint and plan their way through the data from there
(``begin``). Once the parts of training are built, they are given what they remembered, and the
checkpoints to come are prepared (``Run.restore``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Protocol

from parallel.world import World
from runtime import options
from runtime.state import Stateful
from training import run_folder
from training.checkpoint import resume
from training.checkpoint.resume import SavedRun
from training.checkpoint.writer import Checkpointer
from training.config.run import AUTO, RunOptions
from training.exchange.rebalancing import Leg
from training.progress import Length, Progress, Source

_log = logging.getLogger(__name__)

_FIRST = Leg()


class RunConfig(Protocol):
    """What is asked of a configuration."""

    @property
    def run(self) -> RunOptions:
        """Folder and checkpoints."""

    @property
    def schedule(self) -> Length:
        """Length of the run."""


@dataclass(frozen=True)
class Run:
    """A run whose way is known.

    Attributes:
        progress: its way through the data.
        config: the configuration.
        about: what its checkpoints tell of it.
        saved: what it goes on from.
        earlier: the last checkpoint of the legs before this one.
        world: the ranks.
        saves: whether these write checkpoints.
    """

    progress: Progress
    config: RunConfig
    about: Mapping[str, Any]
    saved: Optional[SavedRun]
    earlier: Optional[Path]
    world: World
    saves: bool

    @property
    def last(self) -> Optional[Path]:
        """The last checkpoint so far."""
        return self.saved.path if self.saved else self.earlier

    @property
    def is_new(self) -> bool:
        """Whether it goes on from no checkpoint."""
        return self.saved is None

    def restore(self, parts: Mapping[str, Stateful]) -> Checkpointer:
        """Give the parts what they remembered; the ranks have to come here together.

        Args:
            parts: what a checkpoint holds, by name; the progress is added.

        Returns:
            What saves them, to be used as a context manager.

        Raises:
            ConfigError: the folder of the run cannot be written to.
            DataError: the checkpoint is broken, or no other could be written.
        """
        parts = {**parts, "progress": self.progress}
        if self.saved:
            self.saved.restore(parts)
        folder = Path(self.config.run.models_root)
        if self.saves and self.world.rank == 0:
            options.write(self.about["configuration"], folder / "config.json")
        checkpointer = Checkpointer(
            parts,
            self.world,
            folder,
            keep=self.config.run.keep if self.saves else 0,
            about=self.about,
            resumed=self.last,
        )
        checkpointer.rehearse(self.progress.start_update)
        return checkpointer


def begin(
    config: RunConfig,
    values: Mapping[str, Any],
    source: Source,
    world: World,
    *,
    num_classes: int,
    image_size: tuple[int, int],
    fixed: Sequence[str],
    saves: bool = True,
    leg: Leg = _FIRST,
) -> Run:
    """Find out where the run begins.

    Args:
        config: the configuration.
        values: the same as JSON has it; ``Run.restore`` writes it into the folder of the run.
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
        DataError: the checkpoint is broken.
    """
    about = resume.describe(values, num_classes=num_classes, image_size=image_size, fixed=fixed)
    saved = None
    if leg == _FIRST:
        saved = resume.find(config.run.resume, Path(config.run.models_root), about, world)
        earlier = run_folder.earlier_default(Path(config.run.models_root))
        if saved is None and config.run.resume == AUTO and earlier is not None:
            _log.info(
                "%s has checkpoints of an earlier version, which wrote there unless told "
                "otherwise: go on from them with --models-root %s",
                *(earlier, earlier),
            )
        progress = Progress.plan(
            config.schedule, source, saved.section("progress") if saved else None
        )
        if not saves:
            progress = progress.from_epoch(source)
    else:
        progress = Progress.onward(config.schedule, source, leg)
    return Run(progress, config, about, saved, leg.checkpoint, world, saves)
