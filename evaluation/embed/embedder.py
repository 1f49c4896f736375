"""From images to the rows of a file, for the commands that write embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from evaluation.features import Images, normalized, sums_of_views
from evaluation.folds import Features
from evaluation.network import FaceNetwork


class Embedder(NamedTuple):
    """How images become rows.

    Attributes:
        network: from images to features.
        batch_size: images per batch.
        flip: whether the features of mirror images are added.
        normalizes: whether rows get the length 1.
    """

    network: FaceNetwork
    batch_size: int
    flip: bool = True
    normalizes: bool = True

    def rows(self, images: Images) -> Features:
        """Return the rows [b, D] of at most ``batch_size`` images.

        Raises:
            DataError: they are not finite.
        """
        features, _ = sums_of_views(self.network.extract, images, self.batch_size, flip=self.flip)
        return normalized(features) if self.normalizes else features

    def width(self) -> int:
        """Return D, which only the network knows."""
        return self.rows(np.zeros((1, 3, *self.network.image_size), np.uint8)).shape[1]

    def notes(self) -> dict[str, str]:
        """Return what a file says about the rows."""
        return {
            "model": self.network.name,
            "flip": str(self.flip).lower(),
            "normalized": str(self.normalizes).lower(),
        }


def batches(images: Iterable[Images], size: int) -> Iterator[Images]:
    """Yield batches [size, 3, height, width] of consecutive images; the last may be smaller."""
    waiting: list[Images] = []
    for image in images:
        waiting.append(image)
        if len(waiting) == size:
            yield np.stack(waiting)
            waiting = []
    if waiting:
        yield np.stack(waiting)
