"""The images, gradient and hyperparameters that all variants of a backbone are measured with.

Imports neither MXNet nor PyTorch, since each is measured in an environment without the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EMBEDDING = 512
IMAGE_SIZE = (112, 112)
LEARNING_RATE = 1e-3
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
SEED = 0
# The networks that ``pytorch_backbone`` has.
PYTORCH_NETWORKS = ("r18", "r34", "r50", "r100", "mbf")


@dataclass(frozen=True)
class BackboneCase:
    """A network by its name, the images of a batch, and the number format of its maps."""

    network: str
    batch: int
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.network}, B={self.batch}, {IMAGE_SIZE[0]}x{IMAGE_SIZE[1]}, {self.dtype}"

    def images(self) -> NDArray[np.float32]:
        """The batch [B, 3, height, width], 0-255."""
        generator = np.random.default_rng((SEED, 1))
        shape = (self.batch, 3, *IMAGE_SIZE)
        return generator.integers(256, size=shape).astype(np.float32)

    def gradient(self) -> NDArray[np.float32]:
        """The gradient [B, D] that comes back from the head, as small as that of a mean loss."""
        generator = np.random.default_rng((SEED, 2))
        noise = generator.standard_normal((self.batch, EMBEDDING), dtype=np.float32)
        return noise / np.float32(self.batch * np.sqrt(EMBEDDING))
