"""Where the five points of an image come from, and the lists in which others have published them.

Lists of points come with VGGFace2, CelebA and IJB, each in another form of the same table: a name
and ten numbers. All are read; they come from strangers, so every line is checked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from typing_extensions import override

from data.align.similarity import FivePoints
from data.decoding import Image
from runtime.errors import DataError

_NUMBERS = 10
_HEADER_LINES = 2


class PointSource(Protocol):
    """Knows or finds the five points of a face."""

    def find(self, name: str, image: Image) -> FivePoints:
        """Return the points of the face, float64 ``[5, 2]``.

        Args:
            name: the image's path within its folder.
            image: uint8 ``[height, width, 3]``, RGB, upright.

        Raises:
            DataError: there is no face, or none can be chosen; the message goes on after the name
                of the image.
        """


class PointsFile(PointSource):
    """A list of points: in each line the name of an image, and x and y of its five points.

    Words are separated by spaces, tabs or commas; a name with spaces needs one of the latter two.
    A name is the image's path within its folder, with or without the ending. Up to two lines at the
    beginning may be a heading, and an eleventh number (the detector's score, as in IJB's lists) is
    ignored.

    Attributes:
        names: those of all lines.

    Raises:
        DataError: the file cannot be read, or a line has another form.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._points: dict[str, FivePoints] = {}
        for number, line in enumerate(_read_lines(path), 1):
            if not line.strip():
                continue
            words = _split(line)
            numbers = [_number(word) for word in words[1:]]
            if number <= _HEADER_LINES and all(map(math.isnan, numbers)):
                continue
            if len(numbers) not in (_NUMBERS, _NUMBERS + 1) or not all(map(math.isfinite, numbers)):
                raise DataError(
                    f"{path}, line {number}: {line.strip()!r:.80} is not the name of an image and "
                    "x and y of five points"
                )
            name = os.path.normpath(words[0])
            if name in self._points:
                raise DataError(f"{path}, line {number}: {name!r:.80} is there twice; keep one")
            self._points[name] = np.array(numbers[:_NUMBERS]).reshape(-1, 2)
        if not self._points:
            raise DataError(f"{path} has no points: each line is a name and ten numbers")

    @property
    def names(self) -> Sequence[str]:
        """The names of all lines, in their order."""
        return list(self._points)

    @override
    def find(self, name: str, image: Image) -> FivePoints:
        points = self._points.get(name, self._points.get(os.path.splitext(name)[0]))
        if points is None:
            raise DataError(f"{self._path} has no points of it, under the name {name}")
        return points


def _read_lines(path: Path) -> list[str]:
    try:
        # A pipe, which is not a file, may never end.
        if path.exists() and not path.is_file():
            raise OSError("it is no file")
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a list of points: {error}") from None


def _split(line: str) -> list[str]:
    separator = next((mark for mark in ",\t" if mark in line), None)
    return [word.strip().strip('"') for word in line.strip().split(separator)]


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan
