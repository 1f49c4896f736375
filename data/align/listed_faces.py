"""The faces of a published list, cut out of its images by the five points that it gives.

A list that belongs to a protocol (IJB's) has a face in each line, and results are comparable only
if every one of them is aligned as by others: with the best rotation, also where the detector's
points fit a mirrored face better, as they do for some faces in profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.align.similarity import align
from data.decoding import decode_file
from data.records.recordio import BrokenRecordError
from runtime.errors import DataError
from runtime.files import read_file


class ListedFaces:
    """Aligned faces, numbered as their lines; read from any number of threads."""

    def __init__(self, folder: Path, names: Sequence[str], points: NDArray[np.float64]) -> None:
        """Join what a list says.

        Args:
            folder: that of the images.
            names: of the image of each face, within the folder.
            points: five of each face, in its image, ``[n, 5, 2]``.
        """
        assert len(names) == len(points), (len(names), len(points))
        self._folder, self._names, self._points = folder, names, points

    def read(self, number: int) -> NDArray[np.uint8]:
        """Return a face as planes, uint8 ``[3, 112, 112]``, RGB.

        Raises:
            DataError: its image is missing or broken, or its points determine no transform; the
                message begins with the path of the image.
        """
        path = self._folder / self._names[number]
        try:
            image = decode_file(read_file(path))
            face = align(image, self._points[number], any_order=True)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        except (BrokenRecordError, DataError) as error:
            raise DataError(f"{path}: {error}") from None
        return np.ascontiguousarray(face.transpose(2, 0, 1))
