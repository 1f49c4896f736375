"""Which classes a rank holds.

Every module that cuts something along the class axis (centers, labels, checkpoints, the dry run)
asks here, so that the arithmetic exists once. Shards are half-open ranges of class ids; the first
``num_classes % world_size`` ranks hold one class more. Rounding up instead would create phantom
classes that sit in the softmax denominator.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """The half-open range of class ids ``[start, stop)`` that one rank holds."""

    rank: int
    world_size: int
    num_classes: int

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.world_size, (self.rank, self.world_size)
        assert self.num_classes >= 0, self.num_classes

    @property
    def start(self) -> int:
        """The first class id of the shard."""
        quotient, remainder = divmod(self.num_classes, self.world_size)
        return self.rank * quotient + min(self.rank, remainder)

    @property
    def stop(self) -> int:
        """One past the last class id of the shard."""
        return self.start + self.size

    @property
    def size(self) -> int:
        """How many classes the shard holds: ``C // n + (rank < C % n)``."""
        quotient, remainder = divmod(self.num_classes, self.world_size)
        return quotient + (self.rank < remainder)
