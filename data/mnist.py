"""MNIST: handwritten digits in IDX files, compressed or not.

An IDX file is a magic number that tells type and dimensions, each dimension as a big-endian word,
and the bytes (LeCun, Cortes and Burges, The MNIST Database of Handwritten Digits).
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.pictures import PicturesInMemory
from runtime.errors import DataError

NUM_CLASSES = 10
_PARTS = {"training": "train", "validation": "t10k"}
# Type "unsigned byte" and the number of dimensions.
_IMAGES_MAGIC, _LABELS_MAGIC = 0x0803, 0x0801
_SIDE = 28


def read(folder: Path, part: str) -> PicturesInMemory:
    """Read a part of the set: pictures [28, 28, 1] of the classes 0 … 9.

    Args:
        folder: holds the files, as they are or compressed (``.gz``).
        part: "training" or "validation".

    Raises:
        DataError: a file is missing, truncated, or something else.
    """
    names = [f"{_PARTS[part]}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
    image_path, label_path = (_find(folder, name) for name in names)
    images = _read_idx(image_path, _IMAGES_MAGIC)
    labels = _read_idx(label_path, _LABELS_MAGIC)
    if images.shape[1:] != (_SIDE, _SIDE) or len(images) != len(labels):
        raise DataError(
            f"{image_path} has {len(images)} pictures of {images.shape[1]} x {images.shape[2]} "
            f"pixels and {label_path.name} {len(labels)} labels, which is not MNIST; copy both "
            "again"
        )
    if not len(labels) or labels.max() >= NUM_CLASSES:
        raise DataError(f"{label_path} has other labels than 0 to 9, or none; copy it again")
    return PicturesInMemory(images[..., None], labels, NUM_CLASSES)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    names = ", ".join(
        f"{part}-{kind}-ubyte"
        for part in _PARTS.values()
        for kind in ("images-idx3", "labels-idx1")
    )
    raise DataError(
        f"{folder / name} does not exist, with or without .gz; --data-dir needs {names}, published "
        "as The MNIST Database of Handwritten Digits (yann.lecun.com/exdb/mnist)"
    )


def _read_idx(path: Path, magic: int) -> NDArray[np.uint8]:
    """Return the array of a file, uint8."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); copy it again") from None
    dimensions = magic & 0xFF
    header = struct.Struct(f">{1 + dimensions}I")
    if len(content) < header.size or header.unpack_from(content)[0] != magic:
        raise DataError(
            f"{path} is no IDX file of {dimensions} dimension{'s' * (dimensions > 1)} (it should "
            f"begin with {magic:08x}); copy it again"
        )
    shape = header.unpack_from(content)[1:]
    if len(content) != header.size + math.prod(shape):
        raise DataError(
            f"{path} has {len(content)} bytes, but its header announces "
            f"{header.size + math.prod(shape)}; it is truncated or damaged: copy it again"
        )
    return np.frombuffer(content, np.uint8, offset=header.size).reshape(shape)
