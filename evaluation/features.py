"""The features of images by a network that is a function: flip test, batches of one shape.

Verification and ``evaluation.embed`` share this, so that an embedding that is written to a file is
the one that a verification judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class FaceNetwork:
    """A network, and how images are given to it."""

    extract: Extract
    image_size: tuple[int, int] = FACE_SIZE
    """Height and width of its images."""
    batch_size: int = 64
    """Images per call: a smaller batch is filled up, so that MXNet plans for one shape only."""
    flip: bool = True
    """True if mirror images are embedded, too."""
    name: str = "the network"
    """Its file, for messages and notes."""

    def views(self, images: Images) -> Features:
        """Return the features [views, b, D] of at most ``batch_size`` images, and of their mirrors.

        Raises:
            DataError: features are not finite, or too large for a length.
        """
        filled = np.zeros((self.batch_size, *images.shape[1:]), np.uint8)
        filled[: len(images)] = images
        views = [filled, np.ascontiguousarray(filled[..., ::-1])] if self.flip else [filled]
        features: Features = np.stack([self.extract(view)[: len(images)] for view in views])
        check_finite(features)
        return features

    def sums(self, images: Images) -> tuple[Features, NDArray[np.float32]]:
        """Return the sums [b, D] of the features of all views, and the means [b] of their norms."""
        features = self.views(images)
        return features.sum(axis=0), np.linalg.norm(features, axis=2).mean(axis=0)


def check_finite(features: Features) -> None:
    """Raise ``DataError`` if features [..., D] are not finite, or too large for a length.

    Without it they are as far from each other as those of two people.
    """
    is_finite = _has_length(features)
    if not is_finite.all():
        raise DataError(
            f"the network gives embeddings that are not finite ({(~is_finite).sum():,} of "
            f"{is_finite.size:,}); it has diverged, or its type is too small for them: give an "
            "earlier epoch, or --dtype float32"
        )


def _has_length(features: NDArray[Any]) -> NDArray[np.bool_]:
    with np.errstate(over="ignore", invalid="ignore"):
        has_length: NDArray[np.bool_] = np.isfinite(np.linalg.norm(features, axis=-1))
    return has_length


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
    wrong = np.flatnonzero(~_has_length(rows))
    if len(wrong):
        raise DataError(
            f"row {first + wrong[0]} of {what} is not finite, or too large for a length; embed "
            "these images again"
        )
    return rows


def batches(images: Iterable[Images], size: int) -> Iterator[Images]:
    """Yield batches [size, 3, height, width] of consecutive images; the last may be smaller."""
    waiting = iter(images)
    while batch := list(islice(waiting, size)):
        yield np.stack(batch)
