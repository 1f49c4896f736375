"""The sizes, features, labels and hyperparameters that all heads are measured with.

Imports neither MXNet nor PyTorch, since each is measured in an environment without the other.

Shapes: B global batch, D embedding, S sampled rows, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partial_fc.shard import DEVIATION

SCALE = 64.0
# CosFace: the margin that costs the alternatives least, since its derivative is 1.
MARGIN = 0.4
LEARNING_RATE = 0.1
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
SEED = 0
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class HeadCase:
    """The sizes of a step: classes, sampled share of them, batch, embedding; and the type."""

    classes: int
    ratio: float
    batch: int = 256
    embedding: int = 512
    dtype: str = "float32"

    @property
    def rows(self) -> int:
        """S: the share of the classes, or those of the batch if they are more."""
        return max(round(self.classes * self.ratio), np.unique(self.labels()).size)

    def __str__(self) -> str:
        return (
            f"{self.classes:,} classes, ratio {self.ratio:g}, "
            f"B={self.batch}, D={self.embedding}, {self.dtype}"
        )

    def centers(self) -> NDArray[np.float32]:
        """The initial class centers [C, D]."""
        generator = np.random.default_rng((SEED, 0))
        return DEVIATION * generator.standard_normal((self.classes, self.embedding), np.float32)

    def features(self) -> NDArray[np.float32]:
        """The embeddings of the batch [B, D]."""
        generator = np.random.default_rng((SEED, 1))
        return generator.standard_normal((self.batch, self.embedding), dtype=np.float32)

    def labels(self) -> NDArray[np.int64]:
        """The class ids of the batch [B], any class as likely as another."""
        return np.random.default_rng((SEED, 2)).integers(self.classes, size=self.batch)
