"""What a margin may ask about the targets of a global batch.

Each rank has the logits of the targets in its own shard and the norms of its own features. Some
margins depend on those of the whole batch, others do not and shall not pay for a collective: so
each asks for what it needs.

Shapes: b batch of a rank, B global batch.
"""

from __future__ import annotations

from typing import Any

from partial_fc.communicator import Communicator


class Targets:
    """The cosines between the features of a global batch and the centers of their classes."""

    def __init__(
        self, cosines_B: Any, local_B: Any, inverse_norms_b1: Any, world: Communicator
    ) -> None:
        """Assemble what this rank knows.

        Args:
            cosines_B: NDArray [B], with any number where the class belongs to another rank.
            local_B: NDArray [B], 1 where the class belongs to this rank, else 0.
            inverse_norms_b1: NDArray [b, 1], 1 / the norms of this rank's features.
            world: the ranks; all of them have to ask for the same.
        """
        self.cosines_B = cosines_B
        self._local_B = local_B
        self._inverse_norms_b1 = inverse_norms_b1
        self._world = world

    def all_cosines(self) -> Any:
        """The cosines of all targets, NDArray [B], the same on every rank."""
        return self._world.allreduce(self.cosines_B * self._local_B, "head.targets")

    def all_norms(self) -> Any:
        """The norms of all features, NDArray [B], the same on every rank."""
        norms_b = 1.0 / self._inverse_norms_b1.reshape((-1,))
        return self._world.allgather(norms_b, "head.norms")
