"""Finding the five points of a face with a detector, an ONNX file that the user has.

Detectors are published under terms of their own, so none comes along. What they take and give is
described in ``data.align.outputs``; here an image is brought into the size of the detector's
input, and one face is chosen of those found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from typing_extensions import override

from data.align.outputs import LARGEST_STRIDE, Faces, form_of
from data.align.points import PointSource
from data.align.similarity import FivePoints
from data.decoding import Image
from runtime.errors import DataError
from runtime.untrusted.child import one_line
from runtime.untrusted.onnx_model import open_session, read_model

CHOICES = ("central", "largest", "only")
"""Which of several faces is taken; ``only`` refuses images with several."""

# Faces that overlap by more than this share of their union are one (both papers).
_SAME_FACE = 0.4
# How much the square of the distance from the middle counts against the area (InsightFace's).
_CENTRALITY = 2.0


class Search(NamedTuple):
    """How faces are looked for.

    Attributes:
        choice: one of ``CHOICES``.
        min_score: the smallest score of a face, above 0 and up to 1.
        side: height and width of the input, a multiple of 32, of a detector that takes any size.
    """

    choice: str = "central"
    min_score: float = 0.5
    side: int = 640


class Detector(PointSource):
    """A face detector; several threads may use it, each with an image of its own.

    Raises:
        ConfigError: ONNX Runtime is not installed.
        DataError: the file is no detector of a form that is known.
    """

    def __init__(self, path: Path, search: Search) -> None:
        self._search = search
        content = read_model(path, (search.side, search.side))
        try:
            # Threads work on images of their own; those of a session would compete with them.
            self._session = open_session(content, threads=1)
            self._input, *_ = self._session.get_inputs()
            self._size = self._input_size()
            blank = np.zeros((1, 3, *self._size), np.float32)
            # Its shapes decide: those that a file states are often wrong or open.
            outputs = self._run(blank)
            self._form = form_of([output.ndim for output in outputs])
            self._form.decode(outputs, self._size, np.inf)
        except DataError as error:
            raise DataError(f"{path} is no face detector that is known: {error}") from None

    @override
    def find(self, name: str, image: Image) -> FivePoints:
        height, width = image.shape[:2]
        scale = min(self._size[0] / height, self._size[1] / width)
        inner = max(1, int(height * scale)), max(1, int(width * scale))
        canvas = np.zeros((*self._size, 3), np.uint8)
        canvas[: inner[0], : inner[1]] = cv2.resize(image, inner[::-1])
        outputs = self._run(self._form.normalize(canvas))
        faces = self._form.decode(outputs, self._size, self._search.min_score)
        faces = remove_overlapping(faces)
        # Without the half pixel between the centers of pixels, as the detectors were trained.
        back = np.array([width / inner[1], height / inner[0]])
        faces = faces._replace(boxes=faces.boxes * np.tile(back, 2), points=faces.points * back)
        points: FivePoints = faces.points[self._choose(faces, (height, width))].astype(np.float64)
        return points

    def _choose(self, faces: Faces, size: tuple[int, int]) -> int:
        """Return the number of the face that is taken; ``size`` is that of the image."""
        count = len(faces.scores)
        if not count:
            raise DataError(f"no face has a score of {self._search.min_score:g} or more")
        if count > 1 and self._search.choice == "only":
            raise DataError(f"it shows {count} faces; --face central or largest takes one of them")
        corners = faces.boxes.reshape(-1, 2, 2)
        values = np.prod(corners[:, 1] - corners[:, 0], axis=1)
        if self._search.choice == "central":
            offsets = corners.mean(axis=1) - np.array(size[::-1]) / 2
            values = values - _CENTRALITY * np.square(offsets).sum(axis=1)
        return int(np.argmax(values))

    def _input_size(self) -> tuple[int, int]:
        """Return height and width of the input; the file may leave them open."""
        shape, kind = self._input.shape, self._input.type
        channels = shape[1] if len(shape) == 4 else 0
        if kind != "tensor(float)" or (isinstance(channels, int) and channels != 3):
            raise DataError(f"it takes {kind} {shape} instead of float32 [1, 3, height, width]")
        height, width = (side if isinstance(side, int) else self._search.side for side in shape[2:])
        if min(height, width) < LARGEST_STRIDE or height % LARGEST_STRIDE or width % LARGEST_STRIDE:
            raise DataError(
                f"it takes images of {height} x {width}, which are not multiples of "
                f"{LARGEST_STRIDE}"
            )
        return height, width

    def _run(self, batch: Any) -> Any:
        try:
            outputs = self._session.run(None, {self._input.name: batch})
        except Exception as error:
            # Its errors derive from Exception alone, and have several lines.
            raise DataError(
                f"the detector fails on {list(batch.shape)}: {one_line(str(error))}"
            ) from None
        # A sequence is a list, an optional value may be None.
        if not all(isinstance(one, np.ndarray) and one.dtype.kind == "f" for one in outputs):
            raise DataError("an output of the detector is no tensor of floats; export it again")
        return outputs


def remove_overlapping(faces: Faces) -> Faces:
    """Return the faces without those that overlap one with a higher score; the best is first."""
    finite = np.isfinite(faces.boxes).all(axis=1) & np.isfinite(faces.points).all(axis=(1, 2))
    faces = Faces(*(part[finite] for part in faces))
    if not len(faces.scores):
        return faces
    corners = np.concatenate([faces.boxes[:, :2], faces.boxes[:, 2:] - faces.boxes[:, :2]], axis=1)
    kept = cv2.dnn.NMSBoxes(corners.tolist(), faces.scores.tolist(), 0.0, _SAME_FACE)
    return Faces(*(part[np.array(kept)] for part in faces))
