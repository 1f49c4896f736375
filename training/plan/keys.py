"""For what a measurement holds: its key in the file of ``--calibrate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from runtime import environment, processors

if TYPE_CHECKING:
    # Either program loads its own.
    from training.config.faces import FaceConfig
    from training.config.images import ImageConfig


class Cell(NamedTuple):
    """Ranks on this host at the same time, and the threads of each."""

    ranks: int
    threads: int

    @classmethod
    def of(cls, world_size: int) -> Cell:
        """As many of a plan's ranks as this host has processors for.

        Raises:
            ConfigError: ``OMP_NUM_THREADS`` is not a positive integer.
        """
        ranks = min(world_size, processors.available())
        if "OMP_NUM_THREADS" in environment.variables():
            return cls(ranks, environment.visible_threads())
        return cls(ranks, max(1, processors.available() // ranks))

    def __str__(self) -> str:
        return f"{self.ranks} ranks x {self.threads} threads"


def network_key(config: FaceConfig, cell: Cell) -> str:
    """What a step of the backbone depends on; not the batch and its parts."""
    network = config.backbone
    words = [network.network, network.net_output or "own output", str(network.embedding_size)]
    words += [network.dtype, config.optimizer.optimizer]
    words += ["recompute"] * network.recompute + ["sync-bn"] * network.sync_bn
    words += [f"freeze {','.join(network.frozen)}"] * bool(network.frozen)
    return "; ".join([*words, str(cell)])


def classifier_key(config: ImageConfig, cell: Cell) -> str:
    """What a step of a classifier with its input depends on; not the batch."""
    network, data = config.classifier, config.data
    words = ["classifier", network.model, data.images, str(data.image_size), network.dtype]
    words += [f"{data.threads or 'all'} threads of the loader"]
    words += ["sync-bn"] * network.sync_bn
    words += [f"freeze {','.join(network.frozen)}"] * bool(network.frozen)
    return "; ".join([*words, str(cell)])


def head_key(config: FaceConfig, cell: Cell) -> str:
    """What the passes of the head depend on; not the classes, the sample and the batch."""
    words = [config.head.head_dtype, config.optimizer.optimizer]
    return "; ".join([*words, str(config.backbone.embedding_size), str(cell)])


def store_key(config: FaceConfig, cell: Cell) -> str:
    """What rows of a store depend on: the disk, and the length of a record."""
    words = [config.head.center_store or "no store", config.optimizer.optimizer]
    return "; ".join([*words, str(config.backbone.embedding_size), str(cell)])


def input_key(config: FaceConfig) -> str:
    """Of which disk the speed is: that of the first record set."""
    return config.data.rec[0] if config.data.rec else "temporary files"
