"""The features of images by a network that is a function: flip test, batches of one shape.

Verification and ``evaluation.embed`` share this, so that an embedding that is written to a file is
the one that a verification judges.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from evaluation.folds import Features

Images = NDArray[np.uint8]
Extract = Callable[[Images], Features]
"""The network: from RGB images uint8 [b, 3, h, w] to features float32 [b, D]."""

FACE_SIZE = (112, 112)


def sums_of_views(
    extract: Extract, images: Images, batch_size: int, *, flip: bool
) -> tuple[Features, NDArray[np.float32]]:
    """Return the features [b, D] of images, and their norms [b].

    With ``flip``, the features are the sum of those of an image and its mirror image, and a norm is
    the mean of both.

    Args:
        extract: the network.
        images: uint8 [b, 3, h, w], at most ``batch_size``, and possibly none.
        batch_size: what the batch is filled up to with black images, so that MXNet plans the
            network for one shape only.
        flip: whether mirror images count.
    """
    filled = np.zeros((batch_size, *images.shape[1:]), np.uint8)
    filled[: len(images)] = images
    views = [filled, np.ascontiguousarray(filled[..., ::-1])] if flip else [filled]
    features = np.stack([extract(view)[: len(images)] for view in views])
    return features.sum(axis=0), np.linalg.norm(features, axis=2).mean(axis=0)


def normalized(features: Features) -> Features:
    """Return features [b, D] with rows of length 1; a row of zeros stays zero."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    unit: Features = features / np.maximum(lengths, np.finfo(np.float32).tiny)
    return unit
