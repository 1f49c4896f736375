"""CIFAR-10: small color images of ten classes, in its "python" and its "binary" version.

Both have 10,000 images in each file. Files of the python version are pickles, which are read
without running code that they may carry. In the binary version an image is a byte for the label and
3,072 bytes for the pixels: the planes of red, green and blue, 32 x 32 each (Krizhevsky, Learning
Multiple Layers of Features from Tiny Images, 2009).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import plain_pickle
from data.images.image_set import ImagesInMemory
from data.plain_pickle import UnsafePickleError
from runtime.errors import DataError

NUM_CLASSES = 10
_IMAGES_PER_FILE = 10_000
_SIDE = 32
_IMAGE_BYTES = 3 * _SIDE * _SIDE
_FILES = {
    "training": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "validation": ("test_batch",),
}
_FOLDERS = (".", "cifar-10-batches-py", "cifar-10-batches-bin")
# The content of a file: labels ``[n]``, pixels uint8 ``[n, 3072]``.
_Content = tuple[NDArray[Any], NDArray[np.uint8]]


def read(folder: Path, part: str) -> ImagesInMemory:
    """Read the part "training" or "validation": images [32, 32, 3], RGB, of the classes 0 … 9.

    ``folder`` holds the files of one version, or the folder in which they are published.

    Raises:
        DataError: a file is missing, of the wrong length, or no CIFAR-10 file.
    """
    files = [_read_file(path) for path in _find(folder, _FILES[part])]
    labels, pixels = (np.concatenate(arrays) for arrays in zip(*files))
    images = pixels.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return ImagesInMemory(np.ascontiguousarray(images), labels.astype(np.uint8), NUM_CLASSES)


def files_of(folder: Path) -> list[Path]:
    """Return the files that a folder may hold, of both versions."""
    names = [name for names in _FILES.values() for name in names]
    return [path for paths in _versions(folder, names) for path in paths]


def _versions(folder: Path, names: Sequence[str]) -> Iterator[list[Path]]:
    """Yield the paths of files in each version and place."""
    for subfolder, suffix in itertools.product(_FOLDERS, ("", ".bin")):
        yield [folder / subfolder / f"{name}{suffix}" for name in names]


def _find(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the paths of the files, all of one version."""
    fewest_missing = [folder / name for name in names]
    for paths in _versions(folder, names):
        missing = [path for path in paths if not path.is_file()]
        if not missing:
            return paths
        if len(missing) < len(fewest_missing):
            fewest_missing = missing
    raise DataError(
        f"{fewest_missing[0]} does not exist; --data-dir needs {_FILES['training'][0]} to "
        f"{_FILES['training'][-1]} and {_FILES['validation'][0]} of CIFAR-10's python or binary "
        "version, published as The CIFAR-10 dataset (www.cs.toronto.edu/~kriz/cifar.html)"
    )


def _read_file(path: Path) -> _Content:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    parse = _parse_binary if path.suffix == ".bin" else _parse_pickle
    labels, pixels = parse(path, content)
    wrong = labels[(labels < 0) | (labels >= NUM_CLASSES)]
    if len(wrong):
        raise DataError(f"{path} has label {wrong[0]}, but there are 0 to 9; copy it again")
    return labels, pixels


def _parse_binary(path: Path, content: bytes) -> _Content:
    expected = _IMAGES_PER_FILE * (1 + _IMAGE_BYTES)
    if len(content) != expected:
        raise DataError(
            f"{path} has {len(content)} bytes, not the {expected} of {_IMAGES_PER_FILE} images "
            f"of {1 + _IMAGE_BYTES}; it is truncated or no CIFAR-10 file: copy it again"
        )
    rows = np.frombuffer(content, np.uint8).reshape(_IMAGES_PER_FILE, 1 + _IMAGE_BYTES)
    return rows[:, 0], rows[:, 1:]


def _parse_pickle(path: Path, content: bytes) -> _Content:
    try:
        values = plain_pickle.load(content)
        if not isinstance(values, dict):
            raise TypeError("it is no dictionary")
        # Python 2 wrote the keys as bytes, Python 3 writes strings.
        named = {key.decode() if isinstance(key, bytes) else key: values[key] for key in values}
        if not isinstance(named["data"], bytes):
            raise TypeError("its data is no array of bytes")
        pixels = np.frombuffer(named["data"], np.uint8)
        labels = np.array([int(label) for label in named["labels"]], np.int64)
    except (UnsafePickleError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{path} is no CIFAR-10 batch ({type(error).__name__}: {error}); copy it again"
        ) from None
    if pixels.size != _IMAGES_PER_FILE * _IMAGE_BYTES or len(labels) != _IMAGES_PER_FILE:
        raise DataError(
            f"{path} has {pixels.size} bytes of pixels and {len(labels)} labels, not the "
            f"{_IMAGES_PER_FILE * _IMAGE_BYTES} and {_IMAGES_PER_FILE} of a CIFAR-10 batch; "
            "copy it again"
        )
    return labels, pixels.reshape(_IMAGES_PER_FILE, _IMAGE_BYTES)
