"""Saves the network of all ranks.

Parameters start equal and get equal updates. BatchNorm's running statistics do not: each rank has
those of its own images. They are averaged before the network is verified or saved, so that every
rank verifies, and rank 0 saves, the same network.
"""

from __future__ import annotations

import logging
from pathlib import Path

from backbones.checkpoint import read_tensors
from backbones.network import Network, checkpoint_paths
from parallel.world import World
from runtime.errors import DataError
from runtime.mxnet import mx
from training.update.optimizer import make_equal

# The names of the files before "-symbol.json" and "-0000.params".
LAST, BEST = "model", "model-best"

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
        self._backbone = backbone
        self._world = world
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
            _log.warning("%s is gone: the best model from here on is kept", path)
        return is_gone

    def load(self) -> None:
        """Give every rank the saved network, which rank 0 reads; nothing changes if it is gone.

        Raises:
            DataError: the file is broken or of another network.
        """
        path = checkpoint_paths(self._prefix, 0)[1]
        if not self._world.broadcast_object(path.is_file(), "saved.found"):
            _log.warning("%s is gone: going on from the last network instead", path)
            return
        parameters = self._backbone.parameters
        if self._world.rank == 0:
            found = read_tensors(path)
            for name, parameter in parameters.items():
                if name not in found or found[name].shape != parameter.shape:
                    raise DataError(f"{path} is of another network than the checkpoint; remove it")
                value = mx.nd.array(found[name], dtype=found[name].dtype)
                parameter.set_data(value.astype(parameter.dtype))
        make_equal([parameter.data() for parameter in parameters.values()], self._world)
        _log.info("going on from the network in %s", path)
