"""Opens what a classification run reads: images to train on and images to validate on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Optional

from backbones.classifiers import Normalization
from data.batches.image_loader import ImageLoader, TransformedImages, each_once
from data.batches.loader import Batch, Prefetcher
from data.batches.position import EpochPart
from data.image_interface import ImageSet
from data.images import cifar, class_files, mnist
from data.images.image_set import DrawnImages
from data.images.transforms import (
    CenterCrop,
    ImageTransform,
    MiddleCrop,
    PadCropFlip,
    RandomResizedCrop,
    Unchanged,
)
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


@dataclass(frozen=True)
class ImageData:
    """A data set, and what is done to its images."""

    training: ImageSet
    validation: ImageSet
    shape: tuple[int, int, int]
    """Channels, height and width in a batch."""
    normalization: Normalization
    training_transform: ImageTransform
    validation_transform: ImageTransform
    files: Sequence[Path]
    """Files that have to be the same on all hosts."""
    max_broken: int = 0
    """Images of each part that a rank skips because they cannot be read."""

    @property
    def num_classes(self) -> int:
        """The classes of the labels."""
        return self.training.num_classes

    def num_examples(self, data: ImageDataOptions) -> int:
        """The images of an epoch.

        Raises:
            DataError: there are fewer than were asked for.
        """
        count = len(self.training)
        if data.num_examples is not None and data.num_examples > count:
            raise DataError(
                f"--num-examples {data.num_examples} is more than the {count} images of the "
                "training set; leave it out to use all"
            )
        return data.num_examples or count

    def open_loader(self, data: ImageDataOptions, seed: int, epoch_part: EpochPart) -> ImageLoader:
        """Return the batches to train on."""
        return ImageLoader(
            TransformedImages(self.training, self.training_transform, self.shape, self.max_broken),
            batch_size=data.batch_size,
            epoch_part=epoch_part,
            seed=seed,
            threads=_threads(data),
        )

    def validation_batches(self, data: ImageDataOptions, world: World) -> Iterator[Batch]:
        """Yield this rank's share of the images to validate on."""
        with Prefetcher(_threads(data)) as prefetcher:
            yield from each_once(
                self._validated,
                prefetcher,
                batch_size=data.batch_size,
                rank=world.rank,
                world_size=world.size,
            )

    def warn(self, rank: int) -> None:
        """Log which files of the set are not used; rank 0 does it for all."""
        for line in (*self.training.left_out, *self.validation.left_out):
            if rank == 0:
                _log.warning(line)

    @cached_property
    def _validated(self) -> TransformedImages:
        """The images to validate on; a broken one is named once, not after every epoch."""
        return TransformedImages(
            self.validation, self.validation_transform, self.shape, self.max_broken
        )


def open_images(data: ImageDataOptions, seed: int) -> ImageData:
    """Open the data set of a run.

    Raises:
        ConfigError: the images are smaller than ``--image-size``.
        DataError: the data is missing or broken.
    """
    if data.images in cifar.SETS:
        found = _open_cifar(data)
    elif data.images == "imagenet":
        found = _open_imagenet(data)
    elif data.images == "mnist":
        training, validation = (mnist.read(_folder(data), part) for part in _PARTS)
        transforms, files = (Unchanged(), Unchanged()), mnist.files_of(_folder(data))
        found = ImageData(training, validation, (1, 28, 28), _MNIST, *transforms, files)
    else:
        found = _draw(data, seed)
    return replace(found, max_broken=data.max_bad_records)


def _open_imagenet(data: ImageDataOptions) -> ImageData:
    size = _size(data)
    if records := _records(data):
        sets = class_files.open_records(*records)
        files = [path for rec in records for path in files_of(rec)]
    else:
        files = [_folder(data) / part for part in ("train", "val")]
        sets = class_files.open_folders(*files)
    transforms = RandomResizedCrop(size), CenterCrop(size)
    return ImageData(*sets, (3, size, size), _IMAGENET, *transforms, files)


def _open_cifar(data: ImageDataOptions) -> ImageData:
    """CIFAR-10 or -100: shifted crops of whole images, as in the tutorial, or plain smaller crops.

    The latter are those of Grouping-SGD's networks for 28 pixels.
    """
    kind, size = cifar.SETS[data.images], _size(data)
    files: Sequence[Path]
    if records := _records(data):
        sets = cifar.open_record_files(kind, *records)
        files = [path for rec in records for path in files_of(rec)]
    else:
        training, validation, files = cifar.open_set(kind, _folder(data))
        sets = training, validation
    transforms: tuple[ImageTransform, ImageTransform] = PadCropFlip(), Unchanged()
    if size < cifar.SIDE:
        transforms = PadCropFlip(padding=0, size=size), MiddleCrop(size)
    elif size > cifar.SIDE:
        raise ConfigError(
            f"--image-size {size} is larger than the images of {kind.name}, {cifar.SIDE}; leave it "
            "out, or choose a smaller one for crops"
        )
    return ImageData(*sets, (3, size, size), _CIFAR, *transforms, files)


def _records(data: ImageDataOptions) -> Optional[tuple[Path, Path]]:
    if data.rec_train is None or data.rec_val is None:
        return None
    return Path(data.rec_train), Path(data.rec_val)


def _draw(data: ImageDataOptions, seed: int) -> ImageData:
    assert data.images == "synthetic" and data.num_classes and data.num_images
    size, counts = _size(data), (data.num_images, max(1, data.num_images // _VALIDATION_SHARE))
    draw = partial(DrawnImages, num_classes=data.num_classes, shape=(size, size, 3), seed=seed)
    training, validation = (draw(part, count=count) for part, count in zip(_PARTS, counts))
    transforms = Unchanged(), Unchanged()
    return ImageData(training, validation, (3, size, size), _DRAWN, *transforms, files=())


def _folder(data: ImageDataOptions) -> Path:
    assert data.data_dir is not None, "check() lets no run without data pass"
    return Path(data.data_dir)


def _size(data: ImageDataOptions) -> int:
    assert data.image_size is not None, "the recipes of all sets but MNIST have one"
    return data.image_size


def _threads(data: ImageDataOptions) -> int:
    return data.threads or environment.visible_threads()
