"""Saves the network of all ranks.

Parameters start equal and get equal updates. BatchNorm's running statistics do not: each rank has
those of its own images. They are averaged before the network is verified or saved, so that every
rank verifies, and rank 0 saves, the same network.
"""

from __future__ import annotations

import logging
from pathlib import Path

from backbones.network import Network
from parallel.world import World

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
