"""Random changes of faces as the plainest code draws and makes them: NumPy, an image at a time."""

from __future__ import annotations

import numpy as np

from data.images.augmentation import Augmentation


def drawn_for(change: Augmentation, rng: np.random.Generator, count: int) -> np.ndarray:
    """What the changes of ``count`` images are made of: float32 ``[count, sum of widths]``."""
    return np.hstack([rng.random((count, width), np.float32) for width in change.widths])


def changed_by(change: Augmentation, image: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """A changed copy of uint8 ``[height, width, 3]``."""
    images = np.array(image[None])
    change.of_rows(draws[None], *image.shape[:2])(images, slice(1))
    return images[0]
