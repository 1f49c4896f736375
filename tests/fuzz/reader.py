"""A reader under test, and valid files of the formats that several readers damage or replace.

A reader is right when it returns, or raises a ``UserError`` (for a file a ``DataError``, or its
kind, a ``BrokenRecordError``, which a loader counts and skips). Whatever else comes out of it
ends its process.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Optional

import cv2
import numpy as np

from data.records.writer import RecordWriter
from evaluation.ijb.features_folder import FeaturesFolder
from runtime.errors import DataError
from tests.support.ijb_set import Sizes, write_set

SEPARATOR = b"==\n"
"""Between the contents of two files in one input."""

SIZES = Sizes(faces=10, templates=6, people=4, pairs=12)
DESCRIPTION = {"model": "0a", "faces": "1b", "count": 5, "flip": True, "dtype": "float32"}


class Reader(NamedTuple):
    """What makes valid files, and what reads a file in a folder of its own."""

    seeds: Callable[[Path], list[bytes]]
    read: Callable[[Path, bytes], object]
    share: int
    """The relative number of inputs in a campaign: more for quicker readers."""
    make: Optional[Callable[[random.Random], bytes]] = None
    """Makes an input that is almost right; damage to the bytes is added to some."""


def of(*seeds: bytes) -> Callable[[Path], list[bytes]]:
    """Return a function that returns these valid files."""
    return lambda _: list(seeds)


def file_reader(
    use: Callable[[Path], object], *names: str, make: Optional[Callable[[Path], object]] = None
) -> Callable[[Path, bytes], None]:
    """Return a function that writes an input to a file, or its parts to two, and reads them.

    ``use`` gets the path of the first; ``make`` writes everything else into the folder, once.
    """

    def read(folder: Path, content: bytes) -> None:
        if make is not None and not any(folder.iterdir()):
            make(folder)
        parts = [content] if len(names) == 1 else content.partition(SEPARATOR)[::2]
        for name, part in zip(names, parts):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(part)
        use(folder / names[0])

    return read


def written(make: Callable[[Path], object], *names: str) -> Callable[[Path], list[bytes]]:
    """Return a function that returns the contents of files that ``make`` writes, as one input."""

    def seeds(folder: Path) -> list[bytes]:
        make(folder)
        return [SEPARATOR.join((folder / name).read_bytes() for name in names)]

    return seeds


def refusals() -> suppress:
    """Refusing one way of reading does not end the others."""
    return suppress(DataError)


def image(number: int = 0, suffix: str = ".png", side: int = 8) -> bytes:
    """Return an image of noise; those of more than one channel and of floats, too."""
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
    if suffix == ".pbm":
        pixels = np.where(pixels[..., 0] > 128, 255, 0).astype(np.uint8)
    if suffix == ".hdr":
        return bytes(cv2.imencode(suffix, (pixels / 255).astype(np.float32))[1])
    return bytes(cv2.imencode(suffix, pixels)[1])


def write_records(folder: Path) -> None:
    with RecordWriter(folder, image_size=(8, 8)) as writer:
        for label in range(3):
            for number in range(3):
                writer.write(image(3 * label + number, (".png", ".jpg")[number % 2]), label)


def write_ijb(folder: Path) -> None:
    write_set(folder / "IJBC", SIZES)


def use_features(folder: Path) -> None:
    """Go on with a folder of features: write what is missing, and read all."""
    with FeaturesFolder(folder, DESCRIPTION) as features:
        features.claim()
        if features.missing():
            features.write(0, np.ones((5, 6), np.float32))
        for rows in features.read():
            assert rows.shape[:2] == (2, 5) and np.isfinite(rows).all()
