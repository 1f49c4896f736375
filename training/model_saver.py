"""Saves the network of all ranks: the last one, and the best one beside it.

Parameters start equal and get equal updates. BatchNorm's running statistics do not: each rank has
those of its own images. They are averaged before the network is verified or saved, so that every
rank verifies, and rank 0 saves, the same network.

What counts of the best model is in the checkpoint: a run that goes on makes the updates after its
checkpoint again, so it also judges again what was verified since, and comes to the same model. The
file may then be of a later update than the checkpoint, never of an earlier one: it is on the disk
before a checkpoint that knows of it is begun.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Callable, Optional

from typing_extensions import override

from backbones.network import Network, checkpoint_paths
from parallel.world import World
from runtime.state import Saved, State, Stateful
from training.update.optimizer import make_equal

# The names of the files before "-symbol.json" and "-0000.params".
LAST, BEST = "model", "model-best"
# The set of ``classify.py``.
VALIDATION = "validation"

_log = logging.getLogger(__name__)


def average_statistics(backbone: Network, world: World) -> None:
    """Give every rank the mean of all ranks' BatchNorm statistics."""
    world.allreduce_all(backbone.statistics, "backbone.statistics", op="mean")


class ModelSaver:
    """Writes ``model-symbol.json`` and ``model-0000.params`` into the run's folder, from rank 0."""

    def __init__(
        self, backbone: Network, world: World, models_root: Path, name: str = LAST
    ) -> None:
        """Args: what to save, over which ranks, in which folder, under which name."""
        self._backbone, self._world = backbone, world
        self._prefix = models_root / name

    def save(self, update: int) -> None:
        """Save the network after ``update`` updates; returns when it is on disk, on all ranks."""
        average_statistics(self._backbone, self._world)
        if self._world.rank == 0:
            self._backbone.export(self._prefix)
            _log.info("update %d: model saved in %s-*", update, self._prefix)
        self._world.barrier()

    def is_gone(self) -> bool:
        """Return True, and warn, if the saved network is gone; the ranks call it together."""
        path = checkpoint_paths(self._prefix, 0)[1]
        is_gone = bool(self._world.broadcast_object(not path.is_file(), "saved.gone"))
        if is_gone:
            _log.warning("%s is gone: the run goes on without it", path)
        return is_gone

    def load(self, read: Callable[[Path, int], object]) -> None:
        """Give every rank the saved network, which rank 0 reads; nothing changes if it is gone.

        Raises:
            DataError: the file is broken or of another network.
        """
        if self.is_gone():
            return
        if self._world.rank == 0:
            read(self._prefix, 0)
        parameters = self._backbone.parameters.values()
        make_equal([parameter.data() for parameter in parameters], self._world)
        _log.info("going on from the network in %s-*", self._prefix)


class BestModel(Stateful):
    """Keeps the model in ``model-best-*`` if none was better before.

    Models are compared by the accuracy on one set, or by the mean over all sets. Of equal ones the
    earlier stays.

    Attributes:
        world: the ranks that keep it together.
        saver: of the files.
        accuracies: of the model that is kept, by set; empty before the first.
    """

    def __init__(
        self, network: Network, world: World, folder: Path, deciding: Optional[str] = None
    ) -> None:
        """Keep a network in the folder of a run; the ``deciding`` set counts, or all of them."""
        self.saver = ModelSaver(network, world, folder, BEST)
        self.world, self._deciding = world, deciding
        self.accuracies: dict[str, float] = {}

    def keep(self, update: int, found: Mapping[str, float]) -> Mapping[str, float]:
        """Keep the model of an update if it is the best; all ranks together, rank 0 writes.

        ``found`` has its accuracies by set; returns those of the model that is kept.

        Raises:
            DataError: the files cannot be written.
        """
        # Processors of several kinds may round an accuracy differently, and workers that have come
        # into this world with other groups do not know what was best: rank 0 says it.
        both = dict(found), self.accuracies
        found, self.accuracies = self.world.broadcast_object(both, "best.accuracies")
        if found and self._is_best(found):
            self.saver.save(update)
            self.accuracies = dict(found)
        return self.accuracies

    @override
    def export_state(self, update: int) -> State:
        return State(values={"accuracies": dict(self.accuracies)})

    @override
    def load_state(self, saved: Saved) -> None:
        self.accuracies = saved.numbers("accuracies")
        if self.accuracies and self.saver.is_gone():
            self.accuracies = {}

    def _is_best(self, found: Mapping[str, float]) -> bool:
        names = [*found] if self._deciding is None else [self._deciding]
        if not self.accuracies.keys() >= {*names}:
            # The kept one cannot be compared, as it was not verified on these sets.
            return True
        now, before = (
            sum(accuracies[name] for name in names) for accuracies in (found, self.accuracies)
        )
        return now > before
