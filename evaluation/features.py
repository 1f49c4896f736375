"""The features of images by a network that is a function: flip test, batches of one shape.

Verification and ``evaluation.embed`` share this, so that an embedding that is written to a file is
the one that a verification judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DataError

Features = NDArray[np.float32]
Images = NDArray[np.uint8]
Extract = Callable[[Images], Features]
"""The network: from RGB images uint8 [b, 3, h, w] to features float32 [b, D]."""

FACE_SIZE = (112, 112)


class NotFiniteError(DataError):
    """Embeddings are not finite, or too large for a length: the network has diverged."""


def features_of_views(extract: Extract, images: Images, batch_size: int, *, flip: bool) -> Features:
    """Return the features [views, b, D] of images, and with ``flip`` of their mirror images.

    Args:
        extract: the network.
        images: uint8 [b, 3, h, w], at most ``batch_size``, and possibly none.
        batch_size: what the batch is filled up to with black images, so that MXNet plans the
            network for one shape only.
        flip: whether mirror images count.

    Raises:
        NotFiniteError: features are not finite, or too large for a length.
        DataError: all features are 0.
    """
    filled = np.zeros((batch_size, *images.shape[1:]), np.uint8)
    filled[: len(images)] = images
    views = [filled, np.ascontiguousarray(filled[..., ::-1])] if flip else [filled]
    features: Features = np.stack([extract(view)[: len(images)] for view in views])
    check_finite(features)
    if images.any() and not features.any():
        raise DataError(
            f"the network gives embeddings of length 0 for all {len(images)} images of a batch, so "
            "every cosine would be 0; its weights are zeros, or those of another network: give "
            "another epoch"
        )
    return features


def check_finite(features: Features) -> None:
    """Raise ``NotFiniteError`` if features [..., D] are not finite, or too large for a length.

    Without it they are as far from each other as those of two people.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(features, axis=-1)
    if not np.isfinite(lengths).all():
        raise NotFiniteError(
            f"the network gives embeddings that are not finite ({(~np.isfinite(lengths)).sum():,} "
            f"of {lengths.size:,}); it has diverged, or its type is too small for them: give an "
            "earlier epoch, or --dtype float32"
        )


def sums_of_views(
    extract: Extract, images: Images, batch_size: int, *, flip: bool
) -> tuple[Features, NDArray[np.float32]]:
    """Return the features [b, D] of images, and their norms [b]; see ``features_of_views``.

    With ``flip``, the features are the sum of those of an image and its mirror image, and a norm is
    the mean of both.
    """
    features = features_of_views(extract, images, batch_size, flip=flip)
    return features.sum(axis=0), np.linalg.norm(features, axis=2).mean(axis=0)


def normalized(features: NDArray[Any]) -> NDArray[Any]:
    """Return features [..., D] with rows of length 1; a row of zeros stays zero."""
    lengths = np.linalg.norm(features, axis=-1, keepdims=True)
    unit: NDArray[Any] = features / np.maximum(lengths, np.finfo(np.float32).tiny)
    return unit


def finite_rows(embeddings: NDArray[Any], first: int, count: int, what: str) -> Features:
    """Return some rows of embeddings [n, D], of any float type, as float32.

    Raises:
        DataError: a row of ``what`` is not finite, or too large for a length.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        rows = np.array(embeddings[first : first + count], np.float32)
        has_length = np.isfinite(np.linalg.norm(rows, axis=1))
    if not has_length.all():
        raise DataError(
            f"row {first + int(np.argmin(has_length))} of {what} is not finite, or too large for a "
            "length; embed these images again"
        )
    return rows


def batches(images: Iterable[Images], size: int) -> Iterator[Images]:
    """Yield batches [size, 3, height, width] of consecutive images; the last may be smaller."""
    waiting = iter(images)
    while batch := list(islice(waiting, size)):
        yield np.stack(batch)
