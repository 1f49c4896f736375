"""The options of data sets and batches, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from runtime.errors import ConfigError
from runtime.options import COUNT, POSITIVE_COUNT, Options, Range, number, option, repeatable

_SHARE = Range(lambda value: 0 <= value <= 1, "must be from 0 (off) to 1")


@dataclass(frozen=True)
class DataOptions(Options):
    """Data."""

    dataset: Optional[str] = None
    """Preset: data set and the recipe that belongs to it; every value of it can be overridden."""

    num_classes: Optional[int] = number(None, Range(lambda value: value >= 2, "must be at least 2"))
    """Classes of a made-up or drawn set; other sets know their own number."""

    num_images: Optional[int] = number(None, POSITIVE_COUNT)
    """Images of a drawn set to train on; other sets know their own number."""

    threads: int = number(0, COUNT)
    """Threads of a rank that make batches; 0 is the rank's share of the processors."""

    batch_size: int = number(64, POSITIVE_COUNT)
    """Images per rank and update."""

    max_bad_records: int = number(100, COUNT)
    """Broken records or image files that a rank skips and names in the log; one more stops the
    run."""


@dataclass(frozen=True)
class FaceDataOptions(DataOptions):
    """Faces: record sets, augmentation, verification sets."""

    rec: tuple[str, ...] = repeatable()
    """Folder of a record set (train.rec, property, .bin files), or its .rec; may be repeated."""

    val_targets: tuple[str, ...] = ()
    """Verification sets: names of .bin files beside the data, as in lfw,cfp_fp."""

    min_images: int = number(0, COUNT)
    """Leave out identities with fewer images than this."""

    class_balance: float = number(0.0, COUNT)
    """Draw images with a probability of (images of their class) to the power of -ALPHA: 0 takes
    each once per epoch, 0.5 is square-root sampling, 1 draws all classes alike."""

    color_jitter: float = number(0.0, _SHARE)
    """Strength of random changes of brightness, contrast and saturation, 0 to 1."""

    cutout: float = number(0.0, _SHARE)
    """Side of a gray square put on each image, as a fraction of the image, 0 (off) to 1."""

    jpeg_compression: float = number(0.0, _SHARE)
    """Share of the images compressed as JPEG of quality 2 to 20, 0 (off) to 1; InsightFace: 0.5."""

    low_resolution: float = number(0.0, _SHARE)
    """Share of the images shrunk to 0.2 to 1 of their sides and enlarged, 0 (off) to 1; AdaFace:
    0.2."""

    blur: float = number(0.0, _SHARE)
    """Share of the images that are blurred, by a Gaussian of 0.5 to 2 pixels, 0 (off) to 1."""

    gray: float = number(0.0, _SHARE)
    """Share of the images that lose their colors, 0 (off) to 1."""

    debug: bool = False
    """Train on batches made in memory: shows whether input is the bottleneck."""

    def check(self) -> None:
        """Refuse verification sets without a folder, or whose names are paths."""
        if self.val_targets and not self.rec and self.dataset is not None:
            raise ConfigError(
                f"--val-targets {','.join(self.val_targets)} has no folder to be found in, "
                f"because --dataset {self.dataset} is made in memory; leave it out"
            )
        for target in self.val_targets:
            if not target or "/" in target or target.endswith(".bin"):
                raise ConfigError(
                    f"--val-targets {target!r} is not a plain name: "
                    "name the .bin files beside the data without folder and ending, as in "
                    "lfw,cfp_fp"
                )


@dataclass(frozen=True)
class ImageDataOptions(DataOptions):
    """Images to classify."""

    data_dir: Optional[str] = None
    """Folder of the data: IDX files, CIFAR's batches, for CIFAR train.rec and test.rec, or train
    and val (for CIFAR test) with a folder of images per class."""

    rec_train: Optional[str] = None
    """Record file (.rec) of training images, for imagenet and CIFAR; goes with --rec-val."""

    rec_val: Optional[str] = None
    """Record file (.rec) of validation images, for imagenet and CIFAR; goes with --rec-train."""

    image_size: Optional[int] = number(
        None, Range(lambda value: value >= 8, "must be at least 8 pixels")
    )
    """Height and width of the images, for imagenet and synthetic; for CIFAR crops below 32."""

    num_examples: Optional[int] = number(None, POSITIVE_COUNT)
    """Train on the first so many images of each epoch's order."""

    @property
    def images(self) -> str:
        """The set of images; a recipe for it may have a longer name: mnist of mnist_cosine."""
        return _images_of(self.dataset or "")

    def check(self) -> None:
        """Refuse a data set whose files are named nowhere or twice."""
        if self.images == "synthetic":
            return
        if (self.rec_train is None) != (self.rec_val is None):
            raise ConfigError("--rec-train and --rec-val go together; give both")
        if self.rec_train is not None and self.data_dir is not None:
            raise ConfigError(
                f"--data-dir {self.data_dir} and --rec-train {self.rec_train} are two sets; leave "
                "one out"
            )
        if self.rec_train is None and self.data_dir is None:
            reads_records = self.images in _DATASETS_OF_OPTIONS["rec_train"]
            records = ", or --rec-train and --rec-val" if reads_records else ""
            raise ConfigError(
                f"--dataset {self.dataset} needs its files: give --data-dir{records}; --dataset "
                "synthetic needs none"
            )


def check_same_dataset(given: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` if the command line names another data set than ``--config``.

    The files and the recipe of the latter would be used. ``given`` and ``saved`` are the options of
    the command line and of the file, by field.
    """
    before = saved.get("dataset")
    if before is not None and given.get("dataset", before) != before:
        raise ConfigError(
            f"--dataset {given['dataset']} is another data set than {before} of --config, which "
            "brings the folders and the recipe of that one; leave one of the two out"
        )


_DATASETS_OF_OPTIONS = {
    "data_dir": ("mnist", "cifar10", "cifar100", "imagenet"),
    "rec_train": ("cifar10", "cifar100", "imagenet"),
    "rec_val": ("cifar10", "cifar100", "imagenet"),
    "num_classes": ("synthetic",),
    "num_images": ("synthetic",),
    "image_size": ("cifar10", "cifar100", "imagenet", "synthetic"),
}


def _images_of(dataset: str) -> str:
    return dataset.partition("_")[0]


def check_given_images(given: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for an option that does not belong to ``given["dataset"]``.

    ``given`` are the options of the command line, by field.
    """
    for field, datasets in _DATASETS_OF_OPTIONS.items():
        if field in given and _images_of(given["dataset"]) not in datasets:
            raise ConfigError(
                f"{option(field)} {given[field]} goes with --dataset "
                f"{' or '.join(datasets)}, not with {given['dataset']}; leave it out"
            )
