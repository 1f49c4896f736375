"""Opens what a face run reads: batches to train on and sets to verify on."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Optional, Union

from data.batches.face_loader import FaceLoader, MemoryBatches
from data.contents import Images
from data.drawn import face_set
from data.options import FaceDataOptions
from data.records.shards import compared_files, open_sets
from data.verification.bin_file import VerificationSet, read_bin
from parallel.world import World
from runtime.errors import ConfigError, DataError
from training import same_data

_log = logging.getLogger(__name__)

FACE_SIZE = (112, 112)

Batches = Union[FaceLoader, MemoryBatches]


def open_batches(data: FaceDataOptions, seed: int, world: World) -> Batches:
    """Open the training set of a run; all ranks together.

    Raises:
        DataError: the data is missing or broken.
        ConfigError: there are fewer classes than ranks, or a host has other data.
    """
    same_data.check(_compared_files(data), world)
    batches = (_memory_batches if data.debug else _record_batches)(data, seed, world)
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


def _memory_batches(data: FaceDataOptions, seed: int, world: World) -> MemoryBatches:
    num_classes, image_size = data.num_classes, FACE_SIZE
    if num_classes is None:
        dataset = open_sets(data.rec)
        num_classes, image_size = dataset.num_classes, dataset.image_size
    return MemoryBatches(
        num_classes,
        image_size,
        batch_size=data.batch_size,
        rank=world.rank,
        world_size=world.size,
        seed=seed,
    )


def _record_batches(data: FaceDataOptions, seed: int, world: World) -> FaceLoader:
    if data.dataset == "synthetic":
        face_set.ensure(_folders(data)[0], _drawn(data, seed))
    dataset = open_sets(data.rec)
    if data.num_classes is not None and data.num_classes != dataset.num_classes:
        _log.warning(
            "%s has %d classes, not the %d of the configuration; training with those of the data",
            *(dataset.path, dataset.num_classes, data.num_classes),
        )
    return FaceLoader(dataset, data, rank=world.rank, world_size=world.size, seed=seed)


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
        found = [path for path in paths if os.path.exists(path)]
        if not found and name == needed:
            raise DataError(
                f"--best {name}: {' or '.join(map(str, paths))} does not exist; put the file there "
                "or let another set choose the best model"
            )
        if not found:
            _log.warning(
                "VERIFICATION SET MISSING: %s does not exist, so %r will not be verified; "
                "put the file there or leave it out of --val-targets",
                *(" or ".join(map(str, paths)), name),
            )
            continue
        if len(found) > 1:
            _log.info("verifying %r on %s, not on %s", name, found[0], found[1])
        targets.append(read_bin(found[0]))
    return targets


def _folders(data: FaceDataOptions) -> list[Path]:
    assert data.rec, "check() lets no run without data pass"
    # The original takes the file, too: what belongs to it lies beside it.
    paths = [Path(path) for path in data.rec]
    return [path.parent if os.path.isfile(path) else path for path in paths]
