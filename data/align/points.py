"""Lists of the five points of faces, as others have published them, and the faces cut out by them.

Lists of points come with VGGFace2, CelebA and IJB, each in another form of the same table: a name
and ten numbers. All are read; they come from strangers, so every line is checked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from data.align.similarity import FivePoints, align, is_no_face
from data.decoding import Image, read_image
from data.text_list import splits
from runtime.errors import DataError
from runtime.files import read_lines

_NUMBERS = 10
_HEADER_LINES = 2
_LARGEST = 1e9
_LAYOUT = (
    "each line is the name of an image, then x and y, in pixels, of left eye, right eye, nose, "
    "left and right corner of the mouth, as seen in the image, and at most a score at the end"
)


class PointsFile:
    """A list of points: in each line the name of an image, and x and y of its five points.

    Words are separated by tabs, commas, semicolons or spaces; a name with spaces needs one of the
    former. A name is the image's path within its folder, with or without the ending. Up to two
    lines at the beginning may be a heading, lines that begin with # are comments, and an eleventh
    number (the detector's score, as in IJB's lists) is ignored. Several threads may use it.

    Attributes:
        points: by the names of all lines.

    Raises:
        DataError: the file cannot be read, a line has another form, or at least half of the lines
            have points of no face, because their columns are others.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        """Read a list; ``folder`` is that of the images."""
        self._path, self._folder = path, folder
        self.points: dict[str, FivePoints] = {}
        lines = read_lines(path, "a list of points", errors="surrogateescape")
        used: list[int] = []
        for number, line in enumerate(lines, 1):
            found = next(filter(None, map(_parse, splits(line))), None)
            if found is None:
                if _is_without_face(line, number):
                    continue
                raise self._refusal(number, line, "is not the name of an image and five points")
            name, points = found
            if name in self.points:
                raise DataError(f"{path}, line {number}: {name!r:.80} is there twice; keep one")
            self.points[name] = points
            used.append(number)
        if not used:
            raise DataError(f"{path} has no points: {_LAYOUT}")
        # One line may be a detector's mistake, which is refused when its image is aligned.
        wrong = np.flatnonzero(is_no_face(np.stack(list(self.points.values()))))
        if 2 * len(wrong) >= len(used):
            problem = f"has points of no face, as {len(wrong):,} of {len(used):,} lines have"
            number = used[wrong[0]]
            raise self._refusal(number, lines[number - 1], problem)

    def find(self, name: str) -> FivePoints:
        """Return the points of a face, float64 ``[5, 2]``; ``name`` is its path in the folder.

        Raises:
            DataError: the list has none; the message goes on after the name of the image.
        """
        points = self.points.get(name, self.points.get(os.path.splitext(name)[0]))
        if points is None:
            raise DataError(f"{self._path} has no points of it, under the name {name}")
        return points

    def align(self, path: str, image: Image) -> Image:
        """Return the face in an image of the folder, uint8 ``[112, 112, 3]``, RGB.

        ``image`` is uint8 ``[height, width, 3]``, RGB, upright; ``path`` begins with the folder.

        Raises:
            DataError: the image is refused; the message begins with its path.
        """
        try:
            return align(image, self.find(os.path.relpath(path, self._folder)))
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    def _refusal(self, number: int, line: str, problem: str) -> DataError:
        return DataError(f"{self._path}, line {number}: {line.strip()!r:.80} {problem}; {_LAYOUT}")


def read_face(path: Path, points: FivePoints) -> NDArray[np.uint8]:
    """Read a face of a list that belongs to a protocol (IJB's), uint8 ``[3, 112, 112]``, RGB.

    Results are comparable only if each face is aligned as by others: with the best rotation, also
    where the detector's points fit a mirrored face better, as they do for some faces in profile.

    Raises:
        DataError: the image is missing or broken, or the points determine no transform; the message
            begins with the path.
    """
    image = read_image(path)
    try:
        face = align(image, points, any_order=True)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return np.ascontiguousarray(face.transpose(2, 0, 1))


def _parse(words: Sequence[str]) -> Optional[tuple[str, FivePoints]]:
    """Return the name and the points in the words of a line; None if it has another form."""
    numbers = [_number(word) for word in words[1:]]
    # Not a number is not smaller than the largest coordinate either.
    is_finite = all(abs(number) <= _LARGEST for number in numbers)
    if len(numbers) not in (_NUMBERS, _NUMBERS + 1) or not is_finite:
        return None
    name = words[0] if "/" in words[0] else words[0].replace("\\", "/")
    return os.path.normpath(name), np.array(numbers[:_NUMBERS]).reshape(-1, 2)


def _is_without_face(line: str, number: int) -> bool:
    """Return True if a line is empty, a comment or a heading."""
    words = (word for words in splits(line) for word in words[1:])
    is_heading = number <= _HEADER_LINES and all(math.isnan(_number(word)) for word in words)
    return is_heading or not line.strip() or line.startswith("#")


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan
