"""Class centers from a pretrained backbone: the mean direction of each class's embeddings.

A new head on a trained backbone begins with random centers, whose gradients at first turn the
backbone away from what it has learned. Where the images of a class lie already is a better
beginning: the center of a class is the normalized mean of its unit embeddings, of the images as
they are ("imprinting": Qi et al., "Low-Shot Learning with Imprinted Weights", CVPR 2018, section
3.2). Each rank computes those of its own shard, so nothing is sent, and no rank has more in memory
than its centers twice.
"""

from __future__ import annotations

import logging
import time
from typing import Callable

import numpy as np
from numpy.typing import NDArray

from backbones.inference import Infer
from backbones.model import Backbone
from data.batches.face_loader import FaceLoader
from evaluation.features import check_finite, normalized
from partial_fc.head import PartialFC
from partial_fc.shard import Shard

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 60


def start_from_means(
    head: PartialFC, backbone: Backbone, faces: object, beat: Callable[[], None]
) -> None:
    """Put the mean directions of its classes into this rank's shard of the centers.

    ``beat`` is called after each batch, because a pass over all images may take hours.

    Raises:
        DataError: too many images cannot be read.
    """
    assert isinstance(faces, FaceLoader), "check() lets no batches from memory pass"
    (size,) = head.rows.row_shapes["centers"]
    head.start_from(class_means(backbone.inference(), faces, head.shard, size, beat))


def class_means(
    infer: Infer, faces: FaceLoader, shard: Shard, size: int, beat: Callable[[], None]
) -> NDArray[np.float32]:
    """Return the sums of unit embeddings of the classes of a shard: float32 [shard.size, size].

    They are 0 for a class of which no image can be read.
    """
    sums, start, stop = np.zeros((shard.size, size), np.float32), shard.start, shard.stop
    images, began = 0, time.monotonic()
    said = began
    for batch in faces.images_of(start, stop):
        beat()
        embeddings = infer(batch.images)
        check_finite(embeddings)
        units = normalized(embeddings)
        readable = (batch.labels >= start) & (batch.labels < stop)
        np.add.at(sums, batch.labels[readable] - start, units[readable])
        images += int(readable.sum())
        if time.monotonic() - said > _SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            _log.info("initial class centers: %d images so far", images)
    empty = int((~sums.any(axis=1)).sum())
    _log.info(
        "initial class centers: means of %d images of %d classes in %.0f s; %d classes without a "
        "readable image keep random ones",
        *(images, shard.size, time.monotonic() - began, empty),
    )
    return sums
