"""The file ``property`` of a set: ``num_classes,height,width`` on its first line.

InsightFace's programs write further lines in some sets; they say nothing that is needed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from data.records.recordio import FLOAT32_EXACT
from runtime.errors import DataError
from runtime.files import read_lines

_MAX_SIDE = 4096
_LARGEST_FILE = 1 << 20
_LINE = re.compile(r"(\d{1,18})\s*,\s*(\d{1,18})\s*,\s*(\d{1,18})", re.ASCII)


class Property(NamedTuple):
    """Number of classes, and height and width of the images, as ``property`` gives them."""

    num_classes: int
    image_size: tuple[int, int]


def read_property(path: Path, most_classes: int = FLOAT32_EXACT) -> Property:
    """Read the number of classes and the image size (height, width).

    Raises:
        DataError: the file does not say them, or more than ``most_classes``.
    """
    lines = read_lines(path, "num_classes,height,width", errors="replace", limit=_LARGEST_FILE)
    first = next(filter(None, map(str.strip, lines)), "")
    found = _LINE.fullmatch(first)
    if found:
        num_classes, height, width = map(int, found.groups())
        sides = range(1, _MAX_SIDE + 1)
        if 0 < num_classes <= most_classes and height in sides and width in sides:
            return Property(num_classes, (height, width))
    raise DataError(
        f"{path} begins with {first[:80]!r} instead of num_classes,height,width "
        "(such as 10572,112,112); correct it"
    )
