"""CIFAR-10 and CIFAR-100: small color images of ten and of a hundred classes, in all their forms.

Published are a "python" and a "binary" version (Krizhevsky, Learning Multiple Layers of Features
from Tiny Images, 2009). Files of the python version are pickles, which are read without running
code that they may carry. In the binary version an image is the bytes of its labels, of which the
last is the class, and 3,072 bytes for the pixels: the planes of red, green and blue, 32 x 32 each.

MXNet's examples, and Grouping-SGD, pack them into two record files; others unpack them into folders
of images, a folder per class.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from data import plain_pickle
from data.image_interface import ImageSet, first_readable
from data.images.image_set import ImagesInMemory, open_folders, open_records
from data.plain_pickle import UnsafePickleError
from data.records import record_set
from runtime.errors import DataError
from runtime.files import as_data_error, read_file

SIDE = 32
"""Height and width of an image."""
_IMAGE_BYTES = 3 * SIDE * SIDE
_VALIDATION_NAMES = ("test", "val")
# Labels and pixels, uint8, of a file.
_Content = tuple[NDArray[Any], NDArray[np.uint8]]


@dataclass(frozen=True)
class Cifar:
    """One of the two sets, and the names of its files."""

    num_classes: int
    files: Mapping[str, Sequence[str]]
    """Of the published versions, without ending, by the part "training" or "validation"."""
    images_per_file: Mapping[str, int]
    """By part."""
    folders: Sequence[str]
    """In which the versions are published."""
    labels: str
    """The key of the classes in the python version."""
    label_bytes: int
    """Of an image in the binary version."""

    @property
    def name(self) -> str:
        """The published name."""
        return f"CIFAR-{self.num_classes}"

    @property
    def stem(self) -> str:
        """How the names of record files begin in MXNet's examples."""
        return f"cifar{self.num_classes}"


CIFAR10 = Cifar(
    10,
    {"training": [f"data_batch_{number}" for number in range(1, 6)], "validation": ["test_batch"]},
    {"training": 10_000, "validation": 10_000},
    (".", "cifar-10-batches-py", "cifar-10-batches-bin"),
    "labels",
    label_bytes=1,
)
# Its first label is that of one of twenty superclasses.
CIFAR100 = Cifar(
    100,
    {"training": ["train"], "validation": ["test"]},
    {"training": 50_000, "validation": 10_000},
    (".", "cifar-100-python", "cifar-100-binary"),
    "fine_labels",
    label_bytes=2,
)
SETS = {one.stem: one for one in (CIFAR10, CIFAR100)}
"""By the name that ``--dataset`` has for them."""


def open_set(cifar: Cifar, folder: Path) -> tuple[ImageSet, ImageSet, list[Path]]:
    """Open the images to train and to validate on, [32, 32, 3], RGB, of the classes from 0 on.

    The third value are the files that hosts have to have in common.

    Args:
        cifar: which of the two.
        folder: with the files of a published version, or the folder in which they are published;
            with ``train.rec`` and ``test.rec``, or ``cifar10_train.rec`` and ``cifar10_val.rec``;
            or with the folders ``train`` and ``test`` (or ``val``), a folder per class in each.

    Raises:
        DataError: there is none of these, or a file is broken.
    """
    for start in ("", f"{cifar.stem}_"):
        if records := _find_pair(folder, start, ".rec"):
            files = [path for rec in records for path in record_set.files_of(rec)]
            return (*open_record_files(cifar, *records), files)
    if folders := _find_pair(folder):
        return (*_checked(cifar, open_folders(*folders), folder), list(folders))
    published = [path for part in cifar.files for path in _find(cifar, folder, part)]
    return read(cifar, folder, "training"), read(cifar, folder, "validation"), published


def open_record_files(cifar: Cifar, training: Path, validation: Path) -> tuple[ImageSet, ImageSet]:
    """Open the set in two record files.

    Raises:
        DataError: a file is missing or broken, or holds another set.
    """
    return _checked(cifar, open_records(training, validation), training)


def read(cifar: Cifar, folder: Path, part: str) -> ImagesInMemory:
    """Read the part "training" or "validation" of a published version.

    Raises:
        DataError: a file is missing, of the wrong length, or none of this set.
    """
    files = [_read_file(cifar, part, path) for path in _find(cifar, folder, part)]
    labels, pixels = (np.concatenate(arrays) for arrays in zip(*files))
    images = pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return ImagesInMemory(np.ascontiguousarray(images), labels.astype(np.uint8), cifar.num_classes)


def _find_pair(folder: Path, start: str = "", ending: str = "") -> Optional[tuple[Path, Path]]:
    """Return what to train and to validate on: two files of an ending, or two folders."""
    exists = Path.is_file if ending else Path.is_dir
    for name in _VALIDATION_NAMES:
        pair = folder / f"{start}train{ending}", folder / f"{start}{name}{ending}"
        if all(map(exists, pair)):
            return pair
    return None


def _checked(
    cifar: Cifar, sets: tuple[ImageSet, ImageSet], place: Path
) -> tuple[ImageSet, ImageSet]:
    """Return the same sets, if they have the classes and the size of this one's images."""
    training, validation = sets
    if training.num_classes != cifar.num_classes:
        raise DataError(
            f"{place} has {training.num_classes} classes, not the {cifar.num_classes} of "
            f"{cifar.name}; choose the --dataset that fits: imagenet reads any classes"
        )
    for part in sets:
        index = first_readable(part)
        height, width = part.decoded(index)[0].shape[:2]
        if (height, width) != (SIDE, SIDE):
            raise DataError(
                f"{part.where(index)} is an image of {height} x {width}, not of the "
                f"{SIDE} x {SIDE} of {cifar.name}; bring all to this size, or choose --dataset "
                "imagenet --image-size"
            )
    return training, validation


def _find(cifar: Cifar, folder: Path, part: str) -> list[Path]:
    """Return the paths of a part's files, all of one version and in one place."""
    versions = [
        [folder / subfolder / f"{name}{suffix}" for name in cifar.files[part]]
        for subfolder, suffix in itertools.product(cifar.folders, ("", ".bin"))
    ]
    missing = [[path for path in paths if not os.path.isfile(path)] for paths in versions]
    if [] in missing:
        return versions[missing.index([])]
    raise DataError(
        f"{min(missing, key=len)[0]} does not exist; --data-dir needs all files of {cifar.name}'s "
        "python or binary version, or train.rec and test.rec, or the folders train and test with a "
        f"folder of images per class. It is published as the {cifar.name} dataset "
        "(www.cs.toronto.edu/~kriz/cifar.html)"
    )


def _read_file(cifar: Cifar, part: str, path: Path) -> _Content:
    images = cifar.images_per_file[part]
    parse = _parse_binary if path.suffix == ".bin" else _parse_pickle
    with as_data_error(f"{path} cannot be read"):
        content = read_file(path)
    try:
        labels, pixels = parse(cifar, content)
        labels, pixels = labels.reshape(images), pixels.reshape(images, _IMAGE_BYTES)
    except (UnsafePickleError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{path} is no batch of {images} images of {cifar.name} ({type(error).__name__}: "
            f"{error}); copy it again"
        ) from None
    wrong = labels[(labels < 0) | (labels >= cifar.num_classes)]
    if len(wrong):
        raise DataError(
            f"{path} has label {wrong[0]}, but there are 0 to {cifar.num_classes - 1}; "
            "copy it again"
        )
    return labels, pixels


def _parse_binary(cifar: Cifar, content: bytes) -> _Content:
    rows = np.frombuffer(content, np.uint8).reshape(-1, cifar.label_bytes + _IMAGE_BYTES)
    return rows[:, cifar.label_bytes - 1], rows[:, cifar.label_bytes :]


def _parse_pickle(cifar: Cifar, content: bytes) -> _Content:
    values = dict(plain_pickle.load(content))
    # Python 2 wrote the keys as bytes, Python 3 writes strings.
    named = {key.decode() if isinstance(key, bytes) else key: values[key] for key in values}
    labels = named[cifar.labels]
    # Each text would be parsed, and some are long.
    if not all(isinstance(label, int) for label in labels):
        raise TypeError("a label is no integer")
    return np.array(labels, np.int64), np.frombuffer(named["data"], np.uint8)
