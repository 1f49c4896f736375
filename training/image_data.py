"""Opens what a classification run reads: images to train on and images to validate on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from backbones.classifiers import Normalization
from data.batches.image_loader import ImageLoader, TransformedImages, each_once
from data.batches.loader import Batch, Prefetcher
from data.batches.position import EpochPart
from data.image_interface import ImageSet
from data.images import cifar, image_set, mnist
from data.images.image_set import DrawnImages
from data.images.transforms import transforms_of
from data.options import ImageDataOptions
from data.records.record_set import files_of
from parallel.world import World
from runtime import environment
from runtime.errors import ConfigError, DataError

_log = logging.getLogger(__name__)

_PARTS = ("training", "validation")
_VALIDATION_SHARE = 5

_MNIST = Normalization((0.1307,), (0.3081,))
# The deviations are those of the CIFAR-10 tutorial.
_CIFAR = Normalization((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_DRAWN = Normalization((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))

_Opened = tuple[tuple[ImageSet, ImageSet], Sequence[Path], Normalization]
"""Sets to train and to validate on, their files, and what is done to all images."""


@dataclass(frozen=True)
class ImageData:
    """A data set, and what is done to its images."""

    training: TransformedImages
    validation: TransformedImages
    normalization: Normalization
    files: Sequence[Path]
    """Files that have to be the same on all hosts."""

    def num_examples(self, data: ImageDataOptions) -> int:
        """The images of an epoch.

        Raises:
            DataError: there are fewer than were asked for.
        """
        count = len(self.training.dataset)
        if data.num_examples is not None and data.num_examples > count:
            raise DataError(
                f"--num-examples {data.num_examples} is more than the {count} images of the "
                "training set; leave it out to use all"
            )
        return data.num_examples or count

    def open_loader(self, data: ImageDataOptions, seed: int, epoch_part: EpochPart) -> ImageLoader:
        """Return the batches to train on."""
        return ImageLoader(
            self.training,
            batch_size=data.batch_size,
            epoch_part=epoch_part,
            seed=seed,
            threads=_threads(data),
        )

    def validation_batches(self, data: ImageDataOptions, world: World) -> Iterator[Batch]:
        """Yield this rank's share of the images to validate on."""
        own = np.arange(world.rank, len(self.validation), world.size)
        with Prefetcher(_threads(data)) as prefetcher:
            yield from each_once(self.validation, prefetcher, [own], data.batch_size, fills_up=True)

    def warn(self, rank: int) -> None:
        """Log which files of the set are not used; rank 0 does it for all."""
        for images in (self.training, self.validation):
            for line in images.dataset.left_out if rank == 0 else ():
                _log.warning(line)


def open_images(data: ImageDataOptions, seed: int) -> ImageData:
    """Open the data set of a run.

    Raises:
        ConfigError: the images are smaller than ``--image-size``.
        DataError: the data is missing or broken.
    """
    # Only MNIST has neither colors nor a choice of size.
    side = data.image_size or 28
    shape = (1 if data.images == "mnist" else 3, side, side)
    opened: _Opened
    if data.images == "mnist":
        folder = _folder(data)
        both = mnist.read(folder, _PARTS[0]), mnist.read(folder, _PARTS[1])
        opened = both, mnist.files_of(folder), _MNIST
    elif data.images == "imagenet":
        opened = _open_imagenet(data)
    elif data.images in cifar.SETS:
        opened = _open_cifar(data, side)
    else:
        opened = _draw(data, side, seed)
    sets, files, normalization = opened
    training, validation = (
        TransformedImages(dataset, transform, shape, data.max_bad_records)
        for dataset, transform in zip(sets, transforms_of(data, side))
    )
    return ImageData(training, validation, normalization, files)


def _open_imagenet(data: ImageDataOptions) -> _Opened:
    if records := _records(data):
        sets, files = image_set.open_records(*records), _files(records)
    else:
        files = [_folder(data) / part for part in ("train", "val")]
        sets = image_set.open_folders(*files)
    return sets, files, _IMAGENET


def _open_cifar(data: ImageDataOptions, size: int) -> _Opened:
    kind = cifar.SETS[data.images]
    if size > cifar.SIDE:
        raise ConfigError(
            f"--image-size {size} is larger than the images of {kind.name}, {cifar.SIDE}; leave it "
            "out, or choose a smaller one for crops"
        )
    if records := _records(data):
        sets, files = cifar.open_record_files(kind, *records), _files(records)
    else:
        training, validation, files = cifar.open_set(kind, _folder(data))
        sets = training, validation
    return sets, files, _CIFAR


def _draw(data: ImageDataOptions, size: int, seed: int) -> _Opened:
    assert data.images == "synthetic" and data.num_classes and data.num_images
    counts = data.num_images, max(1, data.num_images // _VALIDATION_SHARE)
    draw = partial(DrawnImages, num_classes=data.num_classes, shape=(size, size, 3), seed=seed)
    training, validation = (draw(part, count=count) for part, count in zip(_PARTS, counts))
    return (training, validation), (), _DRAWN


def _records(data: ImageDataOptions) -> list[Path]:
    return [Path(rec) for rec in (data.rec_train, data.rec_val) if rec is not None]


def _files(records: Sequence[Path]) -> list[Path]:
    return [path for rec in records for path in files_of(rec)]


def _folder(data: ImageDataOptions) -> Path:
    assert data.data_dir is not None, "check() lets no run without data pass"
    return Path(data.data_dir)


def _threads(data: ImageDataOptions) -> int:
    return data.threads or environment.visible_threads()
