"""What a run has: its folder, log, stopwatch, progress through the data, checkpoints, and an end.

Faces and classifiers share it. ``open_run`` claims the folder and opens the log; ``plan`` looks for
a checkpoint and plans the way through the data from there; ``restore`` gives the parts of training
what they remembered and prepares the checkpoints to come; ``fit`` trains.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from data import contents
from data.batches.position import EpochPlan, Position
from data.contents import Images
from parallel.world import TimedWorld
from runtime import devices, options
from runtime.errors import StopRequest
from runtime.options import option
from runtime.state import Stateful
from training import run_folder
from training.checkpoint import resume
from training.checkpoint.reader import SavedPart, SavedRun
from training.checkpoint.writer import Checkpointer
from training.exchange.ranks import Ranks
from training.log.run_log import RunLog
from training.loop import Every, Progress, Step, Updates, fit
from training.run_folder import Storage

if TYPE_CHECKING:
    from data.batches.face_loader import FaceLoader, MemoryBatches
    from data.batches.image_loader import ImageLoader
    from training.config.faces import FaceConfig
    from training.config.images import ImageConfig

    Batches = Union[FaceLoader, MemoryBatches, ImageLoader]
    Config = Union[FaceConfig, ImageConfig]

_log = logging.getLogger(__name__)


@contextmanager
def open_run(config: Config, ranks: Ranks, device: Any, request: StopRequest) -> Iterator[Run]:
    """Claim the folder of a run and open its log; the ranks have to come here together.

    ``device`` is the MXNet context on which this rank computes.

    Raises:
        ConfigError: another run has the folder.
        DataError: it cannot be written.
    """
    folder = Path(config.run.models_root)
    storage = Storage.find(folder, ranks.world)
    # Workers that save nothing leave their folder to those that do.
    is_owner = ranks.saves and storage.is_first
    with run_folder.locked(folder) if is_owner else nullcontext():
        # The others wait until the folder is locked.
        ranks.world.barrier()
        with RunLog(
            folder,
            rank=ranks.number,
            world_size=ranks.size,
            frequent=config.run.frequent,
            stall_timeout=config.run.stall_timeout,
            others=ranks.others,
        ) as log:
            if not devices.is_host(device):
                log.stopwatch.sample()
            yield Run(config, ranks, request, log, storage, str(device))
            log.write_report()
            # A launcher ends all ranks of a run that was told to end as soon as one has left.
            ranks.world.barrier()


class Run:
    """One run, as one of its ranks has it.

    Attributes:
        world: the ranks with which this one computes and saves.
        timed_world: the same, whose collectives count as communication in the stopwatch.
        log: lines and numbers.
        stopwatch: where the time of an update goes.
        folder: of the model, checkpoints, logs and metrics.
        progress: its way through the data.
        is_new: True if it goes on from no checkpoint.
    """

    progress: Progress

    def __init__(
        self,
        config: Config,
        ranks: Ranks,
        request: StopRequest,
        log: RunLog,
        storage: Storage,
        device: str = "",
    ) -> None:
        """Use ``open_run``."""
        self._config, self._ranks, self._request = config, ranks, request
        self._device = device
        self.world, self.log, self.stopwatch = ranks.world, log, log.stopwatch
        self.timed_world = TimedWorld(ranks.world, log.stopwatch)
        self.folder, self._storage = storage.root, storage
        self._saved: Optional[SavedRun] = None
        self._trains_again = False

    def plan(self, source: Batches, images: Optional[Images] = None) -> None:
        """Find out where the run begins; the ranks have to come here together.

        ``fit`` reads ``source``. The ``images`` have to be those of the checkpoint, unless None.

        Raises:
            ConfigError: the checkpoint belongs to another model, or other images.
            DataError: the checkpoint is broken.
        """
        chosen = self._config.run
        self._source = source
        configuration = dict(self._config.values())
        identity = {option(name): configuration[name] for name in self._config.IDENTITY}
        size = "x".join(map(str, source.image_size))
        identity.update({"classes": source.num_classes, "image size": size})
        self._about = {"identity": identity, "configuration": configuration}
        if images is not None:
            own = contents.describe(images) if self.world.rank == 0 else None
            self._about["data"] = self.world.broadcast_object(own, "data.contents")
        self._saved = resume.find(chosen.checkpoint, self._storage, self._about)
        self.is_new = self._saved is None
        if self._saved and images is not None:
            insists = chosen.takes_other_images
            resume.check_images(self._saved, self._about["data"], insists=insists)
        section = SavedPart(self._saved, "progress") if self._saved else None
        self.progress = Progress.plan(self._config.schedule, source, section)
        if self._saved and self.progress.start_update >= self.progress.total_updates:
            self._trains_again = self._config.trains_again(self._saved.configuration)
        if self._trains_again:
            self.progress = self.progress.again(self._config.schedule, source)
            _log.info(
                "the run is finished, and --resume came with another --lr: the schedule is trained "
                "again, from update %d to %d, with a new optimizer",
                *(self.progress.start_update, self.progress.total_updates),
            )
        if not self._ranks.saves:
            # Its data is another than that of the workers that write checkpoints.
            self.progress = self.progress.from_epoch(self._config.schedule, source)

    def epoch_plan(self) -> EpochPlan:
        """Where each update begins in the data; another one after each rebalancing."""
        return self.progress.epoch_plan

    def last_checkpoint(self) -> Optional[Path]:
        """The last checkpoint, when it exists; all ranks together."""
        return self._checkpointer.finish()

    def save_checkpoint(self, update: int) -> None:
        """Save all parts as they are after ``update`` updates; see ``Checkpointer.save``."""
        self._checkpointer.save(update)

    def restore(self, again: Callable[[], None] = lambda: None, **parts: Stateful) -> None:
        """Give the parts what they remembered; the ranks have to come here together.

        Args:
            again: called if a finished run trains its schedule again, after the parts are restored
                but for the ``optimizer``, which starts anew.
            parts: what a checkpoint holds, by name; the progress is added.

        Raises:
            DataError: the checkpoint is broken, or the folder of the run cannot be written.
        """
        self._parts = parts
        if self._saved and self._trains_again:
            self._saved.restore({name: parts[name] for name in parts if name != "optimizer"})
            again()
        elif self._saved:
            self._saved.restore(parts)
        else:
            for part in parts.values():
                part.begin(self.folder)
        self._open_checkpoints(self._saved.path if self._saved and not self._trains_again else None)
        if self._trains_again:
            # A run killed from here on goes on with this schedule, from these networks: ``again``
            # reads files that the schedule overwrites.
            self._checkpointer.save(self.progress.start_update)
            self._checkpointer.finish()
        if self.log.files is not None:
            total, ranks = self.progress.total_updates, self._ranks.size
            facts = {"total_updates": total, "ranks": ranks, "device": self._device}
            self.log.files.begin_part(self.progress.start_update, facts)

    def fit(
        self,
        step: Step,
        actions: Sequence[Every],
        averages: Callable[[], Mapping[str, float]] = dict,
    ) -> int:
        """Train to the end of the run, or until the ranks are told to end; returns the exit status.

        Actions run in this order when due, on ranks that save; ``averages`` returns further numbers
        of a report when one is due.
        """
        ranks = self._ranks
        while True:
            progress = self.progress
            end = progress.period_end(ranks.rebalance_interval)
            updates_per_epoch = ranks.updates_per_epoch(self._source.updates_per_epoch)
            schedule = self._config.schedule.build(ranks.contributors, updates_per_epoch)
            all_actions = [
                replace(one, action=partial(self._announced, one.action)) for one in actions
            ]
            updates = Updates(
                ranks.start(schedule, progress, updates_per_epoch),
                total=end,
                images=self._config.data.batch_size * ranks.contributors,
                epochs=progress.epoch_plan,
                actions=[Every(ranks.settle), *all_actions],
                averages=lambda: {**averages(), **ranks.numbers()},
                stop=ranks.stop(self._request),
            )
            batches = self._source.batches(progress.start_update, progress.epoch_plan.start)
            status = fit(step, batches, updates, self.log)
            self._checkpointer.finish()
            if status or end == progress.total_updates or not self._rebalance(end):
                return status

    def _announced(self, action: Callable[[int], None], update: int) -> None:
        """Run an action on the ranks that save; the others know why they wait."""
        self._ranks.pause(update)
        if self._ranks.saves:
            # Nothing is written into a folder that has come into the place of the run's.
            if self._storage.is_first:
                self.log.folder.check()
            action(update)

    def _rebalance(self, end: int) -> bool:
        """Form groups and shares anew; returns True if training goes on."""
        here = self.progress.epoch_plan.at(end).epoch, end
        with self.log.paused():
            period = self._ranks.rebalance(here, self.log.total, self._source)
        if period is None:
            return False
        epoch, update = period
        self.progress = Progress.from_position(
            *(self._config.schedule, self._source, update, Position(epoch, 0)),
            first_epoch=self.progress.first_epoch,
        )
        self.log.folder.check()
        # Workers that have come into the group of worker 0 learn of its checkpoints.
        last = self.world.broadcast_object(self._checkpointer.last, "checkpoint.last")
        self._storage = Storage.find(self.folder, self.world)
        self._open_checkpoints(last)
        return True

    def _open_checkpoints(self, last: Optional[Path]) -> None:
        saves = self._ranks.saves
        if saves and self.world.rank == 0:
            with run_folder.explained(self.folder):
                options.write(self._about["configuration"], self.folder / "config.json")
        self._checkpointer = Checkpointer(
            {**self._parts, "progress": self.progress},
            self._storage,
            keep=self._config.run.keep if saves else 0,
            about=self._about,
            resumed=last,
        )
        self._checkpointer.rehearse(self.progress.start_update)
