"""Whether an exported network computes what MXNet computes.

A wrong padding or a gamma that is not used shows in no file, only in the numbers. So each exported
network is run beside MXNet's before its file gets its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Extract = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
"""A network: from images uint8 [b, channels, h, w] to its output float32 [b, n]."""

_BLOCK = 8


def largest_difference(
    reference: Extract, other: Extract, images: NDArray[np.uint8], batch_sizes: Sequence[int]
) -> float:
    """Return the largest relative difference between two networks; infinity if one is not finite.

    Of an image that is the largest difference of two elements over the largest element of the
    reference. Both networks get the same batches, since the output GNAP depends on them.

    Args:
        reference: the network that is right.
        other: the network that is compared with it.
        images: uint8 [n, channels, h, w].
        batch_sizes: all images are taken in batches of each of these sizes; the rest that fills
            none is left out.
    """
    largest = 0.0
    for size in batch_sizes:
        for start in range(0, len(images) - size + 1, size):
            batch = images[start : start + size]
            expected, found = reference(batch), other(batch)
            if expected.shape != found.shape or not np.isfinite(expected + found).all():
                return float("inf")
            scale = np.abs(expected).max(axis=1).clip(min=np.finfo(np.float32).tiny)
            differences = np.abs(found - expected).max(axis=1) / scale
            largest = max(largest, float(differences.max()))
    return largest


def draw_images(count: int, shape: Sequence[int]) -> NDArray[np.uint8]:
    """Return images of blocks with some noise, uint8 [count, *shape]: the same on every call."""
    channels, height, width = shape
    generator = np.random.default_rng(0)
    rows, columns = -(-height // _BLOCK), -(-width // _BLOCK)
    blocks = generator.integers(0, 256, (count, channels, rows, columns))
    whole = blocks.repeat(_BLOCK, axis=2).repeat(_BLOCK, axis=3)[..., :height, :width]
    noise = generator.integers(-16, 17, whole.shape)
    return np.clip(whole + noise, 0, 255).astype(np.uint8)
