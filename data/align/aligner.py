"""Aligning the images of a folder, for ``data.align``, ``data.pack`` and others."""

from __future__ import annotations

import os
from pathlib import Path

from data.align.points import PointsFile
from data.align.similarity import align
from data.decoding import Image
from runtime.errors import DataError


class Aligner:
    """Cuts the faces out of the images of a folder; several threads may use it."""

    def __init__(self, points: PointsFile, folder: Path) -> None:
        self._points, self._folder = points, folder

    def align(self, path: str, image: Image) -> Image:
        """Return the face in an image of the folder, uint8 ``[112, 112, 3]``, RGB.

        ``image`` is uint8 ``[height, width, 3]``, RGB, upright; ``path`` begins with the folder.

        Raises:
            DataError: the image is refused; the message begins with its path.
        """
        try:
            return align(image, self._points.find(os.path.relpath(path, self._folder)))
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
