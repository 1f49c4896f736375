"""Opens what a face run reads: batches to train on, sets to verify on, and class centers of images.

A new head on a trained backbone begins with random centers, whose gradients at first turn the
backbone away from what it has learned. Where the images of a class lie already is a better
beginning: the center of a class is the normalized mean of its unit embeddings, of the images as
they are ("imprinting": Qi et al., "Low-Shot Learning with Imprinted Weights", CVPR 2018, section
3.2). Each rank computes those of its own shard, so nothing is sent, and no rank has more in memory
than its centers twice.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Callable, Optional, Union

import numpy as np

from backbones.model import Backbone
from data.batches.face_loader import FaceLoader, MemoryBatches
from data.contents import Images
from data.drawn import face_set
from data.options import FaceDataOptions
from data.records.record_set import RecordSet
from data.records.shards import JoinedSet, compared_files, open_sets
from data.verification.bin_file import VerificationSet, read_bin
from evaluation.features import FACE_SIZE, check_finite, normalized
from parallel.world import World
from partial_fc.head import PartialFC
from runtime.errors import ConfigError, DataError
from training.run_folder import check_data

_log = logging.getLogger(__name__)

Batches = Union[FaceLoader, MemoryBatches]


def open_batches(data: FaceDataOptions, seed: int, world: World) -> Batches:
    """Open the training set of a run; all ranks together.

    Raises:
        DataError: the data is missing or broken.
        ConfigError: there are fewer classes than ranks, or a host has other data.
    """
    check_data(_compared_files(data), world)
    ranks = {"rank": world.rank, "world_size": world.size, "seed": seed}
    batches: Batches
    if data.debug:
        classes, size = data.num_classes, FACE_SIZE
        if classes is None:
            dataset = open_sets(data.rec)
            classes, size = dataset.num_classes, dataset.image_size
        batches = MemoryBatches(classes, size, batch_size=data.batch_size, **ranks)
    else:
        batches = FaceLoader(_records(data, seed), data, **ranks)
    if batches.num_classes < world.size:
        raise ConfigError(
            f"{batches.num_classes} classes cannot be spread over {world.size} ranks; "
            "start fewer ranks"
        )
    return batches


def _compared_files(data: FaceDataOptions) -> list[Path]:
    """Return the files that have to be the same on all hosts.

    Each host draws the synthetic set by itself, and processors of several kinds round its pixels in
    several ways; what it shows follows from the options.
    """
    is_drawn = data.dataset == "synthetic"
    folders = _folders(data)[is_drawn:] if data.rec else []
    return [
        *(path for rec in data.rec[is_drawn:] for path in compared_files(Path(rec))),
        *(folder / f"{name}.bin" for name in data.val_targets for folder in folders),
    ]


def _records(data: FaceDataOptions, seed: int) -> Union[RecordSet, JoinedSet]:
    if data.dataset == "synthetic":
        face_set.ensure(_folders(data)[0], _drawn(data, seed))
    dataset = open_sets(data.rec)
    if data.num_classes is not None and data.num_classes != dataset.num_classes:
        _log.warning(
            "%s has %d classes, not the %d of the configuration; training with those of the data",
            *(dataset.path, dataset.num_classes, data.num_classes),
        )
    return dataset


def _drawn(data: FaceDataOptions, seed: int) -> face_set.DrawnFaces:
    assert data.num_classes is not None and data.num_images is not None
    images_per_identity = data.num_images // data.num_classes
    return face_set.DrawnFaces(data.num_classes, images_per_identity, FACE_SIZE, seed)


def compared_images(data: FaceDataOptions, seed: int, batches: Batches) -> Optional[Images]:
    """Return the images that have to be those of the checkpoint from which a run goes on.

    Those of ``--debug`` are not compared.
    """
    if isinstance(batches, MemoryBatches):
        return None
    is_drawn = data.dataset == "synthetic" and len(data.rec) == 1
    return _drawn(data, seed) if is_drawn else batches.images


def open_targets(data: FaceDataOptions, needed: Optional[str] = None) -> list[VerificationSet]:
    """Open the verification sets of ``--val-targets`` that lie beside the data.

    Of several folders with a set of this name the first counts. A set that is missing is named in a
    warning: the run goes on without it, unless it is ``needed`` to choose the best model.

    Raises:
        DataError: a set is there but broken, or the needed one is missing.
    """
    targets = []
    for name in data.val_targets:
        paths = [folder / f"{name}.bin" for folder in _folders(data)]
        found, places = [one for one in paths if os.path.exists(one)], " or ".join(map(str, paths))
        if found:
            targets.append(read_bin(found[0]))
        elif name == needed:
            raise DataError(
                f"--best {name}: {places} does not exist; put the file there or let another set "
                "choose the best model"
            )
        else:
            _log.warning(
                "VERIFICATION SET MISSING: %s does not exist, so %r will not be verified; "
                "put the file there or leave it out of --val-targets",
                *(places, name),
            )
    return targets


def start_from_means(
    head: PartialFC, backbone: Backbone, faces: Batches, beat: Callable[[], None]
) -> None:
    """Put the mean directions of its classes into this rank's shard of the centers.

    ``beat`` is called after each batch, because a pass over all images may take hours.

    Raises:
        DataError: too many images cannot be read.
    """
    assert isinstance(faces, FaceLoader), "check() lets no batches from memory pass"
    (size,) = head.rows.row_shapes["centers"]
    infer, start, stop = backbone.inference(), head.shard.start, head.shard.stop
    # Sums of unit embeddings; 0 for a class of which no image can be read.
    sums = np.zeros((head.shard.size, size), np.float32)
    images, began = 0, time.monotonic()
    for batch in faces.images_of(start, stop):
        beat()
        embeddings = infer(batch.images)
        check_finite(embeddings)
        readable = (batch.labels >= start) & (batch.labels < stop)
        np.add.at(sums, batch.labels[readable] - start, normalized(embeddings)[readable])
        images += int(readable.sum())
    empty = int((~sums.any(axis=1)).sum())
    _log.info(
        "initial class centers: means of %d images of %d classes in %.0f s; %d classes without a "
        "readable image keep random ones",
        *(images, head.shard.size, time.monotonic() - began, empty),
    )
    head.start_from(sums)


def _folders(data: FaceDataOptions) -> list[Path]:
    assert data.rec, "check() lets no run without data pass"
    # The original takes the file, too: what belongs to it lies beside it.
    paths = [Path(path) for path in data.rec]
    return [path.parent if os.path.isfile(path) else path for path in paths]
