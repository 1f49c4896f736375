"""Aligning the images of a folder, for the two commands that do it: ``data.align``, ``data.pack``.

Both take points from a list or from a detector, with the same options.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from data.align.detector import CHOICES, Detector, Search
from data.align.outputs import LARGEST_STRIDE
from data.align.points import PointsFile, PointSource
from data.align.similarity import align
from data.decoding import Image
from runtime.errors import ConfigError, DataError

_DETECTOR_ENDING = ".onnx"
_MAX_SIDE = 4096


class Aligner:
    """Cuts the faces out of the images of a folder; several threads may use it."""

    def __init__(self, source: PointSource, folder: Path) -> None:
        self._source, self._folder = source, folder

    def align(self, path: str, image: Image) -> Image:
        """Return the face in an image of the folder, uint8 ``[112, 112, 3]``, RGB.

        ``image`` is uint8 ``[height, width, 3]``, RGB, upright; ``path`` begins with the folder.

        Raises:
            DataError: the image is refused; the message begins with its path.
        """
        try:
            points = self._source.find(os.path.relpath(path, self._folder), image)
            return align(image, points)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


def open_source(path: Path, options: argparse.Namespace) -> PointSource:
    """Open a detector, a file that ends in .onnx, or else a list of points.

    ``options`` has those of ``add_search``.

    Raises:
        ConfigError: the options contradict each other.
        DataError: the file is neither.
    """
    is_detector = path.suffix.lower() == _DETECTOR_ENDING
    search = search_of(options, is_detector)
    return Detector(path, search) if is_detector else PointsFile(path)


def add_search(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a detector looks for faces."""
    add = parser.add_argument
    face_help = (
        "which one a detector takes of several faces: central, of which the area minus twice the "
        "square of the distance from the middle of the image is largest, in pixels, as in "
        "InsightFace (the default); largest; or only, which refuses images with several"
    )
    add("--face", choices=CHOICES, help=face_help)
    score_help = f"the smallest score of a face ({Search().min_score:g})"
    add("--min-score", type=float, metavar="X", help=score_help)
    size_help = (
        "height and width to which images are brought for a detector that takes any size "
        f"({Search().side})"
    )
    add("--detector-size", type=int, metavar="N", help=size_help)


def search_of(options: argparse.Namespace, is_detector: bool) -> Search:
    """Return what the options of ``add_search`` say.

    Raises:
        ConfigError: a value is out of range, or one is given without a detector.
    """
    named = {
        "--face": options.face,
        "--min-score": options.min_score,
        "--detector-size": options.detector_size,
    }
    given = [name for name, value in named.items() if value is not None]
    if given and not is_detector:
        raise ConfigError(f"{given[0]} belongs to a detector, and none is given; leave it out")
    default = Search()
    search = Search(
        default.choice if options.face is None else options.face,
        default.min_score if options.min_score is None else options.min_score,
        default.side if options.detector_size is None else options.detector_size,
    )
    if not 0 < search.min_score <= 1:
        raise ConfigError(
            f"--min-score {search.min_score:g} is no score; choose one above 0 and up to 1"
        )
    if not LARGEST_STRIDE <= search.side <= _MAX_SIDE or search.side % LARGEST_STRIDE:
        raise ConfigError(
            f"--detector-size {search.side} is not a multiple of {LARGEST_STRIDE} up to "
            f"{_MAX_SIDE}; 640 is usual"
        )
    return search
