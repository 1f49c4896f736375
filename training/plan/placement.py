"""Where the class centers of a rank and the states of their optimizer lie.

The one place that says so: memory, the largest number of classes and the copy for checkpoints all
follow from it.
"""

from __future__ import annotations

from typing import NamedTuple

from partial_fc.shard import STATES, Shard
from partial_fc.store.index import ENTRY
from training.config.faces import FaceConfig
from training.plan.items import FLOAT

# Of a row in a store: its entry in the index, and whether it has changed. Samples that are read,
# computed and written at a time.
_STORED = ENTRY + 1
_STAGES = 3


class HeldRows(NamedTuple):
    """Bytes in the memory of a rank, on the host or, with ``--gpu``, on its GPU."""

    centers: int
    states: int
    stages: int
    """Of samples whose rows lie on a disk."""
    copied: int
    """For a checkpoint; a store keeps its own."""


def held_rows(config: FaceConfig, shard: Shard, sampled: int) -> HeldRows:
    """The memory of a shard's centers and of all states that their optimizer keeps.

    Args:
        config: of the run.
        shard: of a rank.
        sampled: rows of an update.
    """
    if config.head.center_store is None:
        centers, states = _bytes(config, shard.size)
        return HeldRows(centers, states, 0, centers + states)
    return HeldRows(_STORED * shard.size, 0, _STAGES * sum(_bytes(config, sampled)), 0)


def _bytes(config: FaceConfig, rows: int) -> tuple[int, int]:
    """Of so many centers, and of their states."""
    embedding = config.backbone.embedding_size
    states = STATES[config.optimizer.optimizer].values()
    return rows * embedding * FLOAT, sum(state.num_bytes(rows, embedding) for state in states)
