"""MNIST: handwritten digits in IDX files, compressed or not.

An IDX file is a magic number that says the type and the number of dimensions, each dimension as a
big-endian word, and the bytes (LeCun, Cortes and Burges, The MNIST Database of Handwritten Digits).
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.images.image_set import ImagesInMemory
from runtime.errors import DataError
from runtime.files import open_regular

NUM_CLASSES = 10
_FILES = {
    "training": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "validation": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_FORMS = ("", ".gz")
# Type "unsigned byte" and the number of dimensions.
_IMAGES_MAGIC, _LABELS_MAGIC = 0x0803, 0x0801
_SIDE = 28
# Bytes of a file, unpacked: of the sets in MNIST's form, EMNIST is the largest.
_MAX_BYTES = 16 + 280_000 * _SIDE * _SIDE


def read(folder: Path, part: str) -> ImagesInMemory:
    """Read the part "training" or "validation": images [28, 28, 1] of the classes 0 … 9.

    ``folder`` holds the files, plain or compressed (``.gz``).

    Raises:
        DataError: a file is missing, truncated, or no IDX file.
    """
    image_path, label_path = (_find(folder, name) for name in _FILES[part])
    images = _read_idx(image_path, _IMAGES_MAGIC)
    labels = _read_idx(label_path, _LABELS_MAGIC)
    if images.shape[1:] != (_SIDE, _SIDE) or len(images) != len(labels):
        raise DataError(
            f"{image_path} has {len(images)} images of {images.shape[1]} x {images.shape[2]} "
            f"pixels and {label_path.name} {len(labels)} labels, which is not MNIST; copy both "
            "again"
        )
    if not len(labels) or labels.max() >= NUM_CLASSES:
        raise DataError(f"{label_path} has other labels than 0 to 9, or none; copy it again")
    return ImagesInMemory(images[..., None], labels, NUM_CLASSES)


def files_of(folder: Path) -> list[Path]:
    """Return the files that a folder may hold, in both forms."""
    return [folder / f"{name}{form}" for name in chain(*_FILES.values()) for form in _FORMS]


def _find(folder: Path, name: str) -> Path:
    for form in _FORMS:
        path = folder / f"{name}{form}"
        if os.path.isfile(path):
            return path
    names = ", ".join(chain(*_FILES.values()))
    raise DataError(
        f"{folder / name} does not exist, with or without .gz; --data-dir needs {names}, published "
        "as The MNIST Database of Handwritten Digits (yann.lecun.com/exdb/mnist)"
    )


def _read_idx(path: Path, magic: int) -> NDArray[np.uint8]:
    dimensions = magic & 0xFF
    header = struct.Struct(f">{1 + dimensions}I")
    try:
        with open_regular(path) as plain:
            with gzip.open(plain) if path.suffix == ".gz" else plain as file:
                # A small compressed file may unpack to any size.
                content = file.read(_MAX_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); copy it again") from None
    magic_found, *shape = header.unpack_from(content) if len(content) >= header.size else (0,)
    if magic_found != magic or len(content) != header.size + math.prod(shape):
        raise DataError(
            f"{path} is no IDX file of {dimensions} dimension{'s' * (dimensions > 1)} (it should "
            f"begin with {magic:08x}), or it is truncated, damaged or too large: copy it again"
        )
    return np.frombuffer(content, np.uint8, offset=header.size).reshape(shape)
