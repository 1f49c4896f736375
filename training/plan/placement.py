"""Where the class centers of a rank and the states of their optimizer lie.

The one place that says so: memory, the largest number of classes and the copy for checkpoints all
follow from it. Today both are whole arrays in memory; what keeps rows elsewhere, in another type or
not at all changes ``held_rows`` and nothing else of the plan.
"""

from __future__ import annotations

from typing import NamedTuple

from partial_fc.shard import STATES, Shard
from training.config.faces import FaceConfig

FLOAT = 4


class HeldRows(NamedTuple):
    """Bytes in the memory of a rank, on the host or, with ``--gpu``, on its GPU."""

    centers: int
    states: int


def held_rows(config: FaceConfig, shard: Shard) -> HeldRows:
    """The memory of a shard's centers, float32, and of all states that their optimizer keeps."""
    embedding = config.backbone.embedding_size
    states = STATES[config.optimizer.optimizer].values()
    return HeldRows(
        centers=shard.size * embedding * FLOAT,
        states=sum(state.num_bytes(shard.size, embedding) for state in states),
    )
