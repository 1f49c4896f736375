"""The images that a user names on a command line, numbered, each with a name and a label.

What is to be embedded lies in files, in folders of any depth, in record sets or in verification
sets. Here all of them are one sequence, whose order depends on names alone, so that several ranks
that list the same inputs can share it.
"""

from __future__ import annotations

import os
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from data.align.points import PointsFile
from data.decoding import fit_to
from data.identities import find_images
from data.image_interface import ImageFiles, ImageSet
from data.pack.image_files import fit
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError
from data.verification.bin_file import read_bin
from runtime.errors import DataError

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class ImageSource:
    """Images of one input; read from any number of threads."""

    images: ImageSet
    name: Callable[[int], str]
    """The path of an image, or that of its set, a colon, and its key in the set."""
    label: Callable[[int], str]
    """The identity of an image; empty if it is not known."""
    size: Optional[tuple[int, int]] = None
    """Height and width to which the images of a record set are brought."""


def image_files(
    paths: Sequence[str], labels: Sequence[str], remarks: Sequence[str] = ()
) -> ImageSource:
    """Return image files, with their labels, and lines about files that are left out."""
    files = ImageFiles(paths, [-1] * len(paths), 0, remarks)
    return ImageSource(files, paths.__getitem__, labels.__getitem__)


class NamedImages:
    """All images of some inputs, brought to one size; read from any number of threads.

    Attributes:
        remarks: lines that say which files of folders are left out.
    """

    def __init__(
        self,
        sources: Sequence[ImageSource],
        size: tuple[int, int],
        *,
        scales: bool = False,
        points: Optional[PointsFile] = None,
    ) -> None:
        """Join sources.

        Args:
            sources: one after the other.
            size: height and width of the images.
            scales: whether images of another size are brought to this one, of those of another
                shape the largest part with the same center; otherwise they are refused.
            points: by which the faces are cut out of the images before.
        """
        self._sources, self._size, self._scales, self._points = sources, size, scales, points
        self._starts = [0, *accumulate(len(source.images) for source in sources)]
        self.remarks = [line for source in sources for line in source.images.left_out]

    def __len__(self) -> int:
        return self._starts[-1]

    def name(self, number: int) -> str:
        """Return the name of an image, in one line and without tabs."""
        source, own = self._find(number)
        return source.name(own)

    def label(self, number: int) -> str:
        """Return the identity of an image, in one line and without tabs; empty if not known."""
        source, own = self._find(number)
        return source.label(own)

    def checksum(self) -> int:
        """Return a number of 32 bits that other names, or others in order, hardly have."""
        checksum = 0
        for number in range(len(self)):
            checksum = zlib.crc32(os.fsencode(self.name(number)) + b"\n", checksum)
        return checksum

    def read(self, number: int) -> NDArray[np.uint8]:
        """Return an image as planes, uint8 [3, height, width], RGB.

        Raises:
            DataError: it is broken, of another size, or without a face; the message names it and
                leaves the remedy to the caller.
        """
        source, own = self._find(number)
        name = source.name(own)
        image, _ = source.images.decoded(own)
        if source.size is not None:
            # One of another shape is refused below, or its middle taken.
            with suppress(BrokenRecordError):
                image = fit_to(image, source.size, name)
        if self._points is not None:
            image = self._points.align(name, image)
        if image.shape[:2] != self._size:
            if not self._scales:
                raise DataError(
                    f"{name} has {image.shape[0]} x {image.shape[1]} pixels instead of "
                    f"the network's {self._size[0]} x {self._size[1]}"
                )
            image = fit(image, self._size)
        return np.ascontiguousarray(image.transpose(2, 0, 1))

    def _find(self, number: int) -> tuple[ImageSource, int]:
        assert 0 <= number < len(self), number
        source = bisect_right(self._starts, number) - 1
        return self._sources[source], number - self._starts[source]


def open_sources(inputs: Sequence[str]) -> list[ImageSource]:
    """Return what is to be read of the inputs, in their order.

    An input is an image file; a folder, of which all image files are taken, at any depth, and whose
    folders give the labels; a record set, as a ``.rec`` file or a folder with ``train.rec``; or a
    verification set, a ``.bin`` file.

    Raises:
        DataError: an input is none of these, is broken or has no images.
    """
    return [_open(given) for given in inputs]


def _open(given: str) -> ImageSource:
    path = Path(_checked(given))
    if not os.path.exists(path):
        raise DataError(
            f"{given} does not exist; name images, folders, record sets (.rec) or verification "
            "sets (.bin)"
        )
    if path.suffix == ".rec" or os.path.isfile(path / "train.rec"):
        records = RecordSet(path)

        def label(number: int) -> str:
            found = int(records.labels_between(number, number + 1)[0])
            return str(found) if found >= 0 else ""

        def name(number: int) -> str:
            return f"{records.path}:{records.key(number)}"

        return ImageSource(records, name, label, records.image_size)
    if path.suffix == ".bin":
        # A verification set does not say whose images it has.
        return ImageSource(read_bin(path), lambda number: f"{path}:{number}", lambda number: "")
    if not os.path.isdir(path):
        return image_files([given], [""])
    images, remarks = find_images(path)
    paths = [_checked(os.path.join(path, image)) for image in images]
    return image_files(paths, [os.path.dirname(image) for image in images], remarks)


def _checked(path: str) -> str:
    """Return a path, if it fits into a line of a table."""
    if _CONTROL.search(path):
        raise DataError(f"{path!r} has a tab, a line break or the like in its name; rename it")
    return path
