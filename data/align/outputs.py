"""What the outputs of published face detectors mean: scores, boxes and five points per anchor.

An anchor is a place in the detector's input for which it predicts a face. Three forms of outputs
are known, and told apart by the shapes, since names differ from file to file:

- SCRFD (Guo et al., Sample and Computation Redistribution for Efficient Face Detection, 2021;
  InsightFace's ``det_*.onnx`` and ``scrfd_*_kps.onnx``): scores, distances from the anchor to the
  four sides, and offsets of the points, in units of the stride, at strides 8, 16 and 32, two
  anchors per place.
- RetinaFace (Deng et al., RetinaFace: Single-Shot Multi-Level Face Localisation in the Wild, 2020)
  on MXNet: maps of scores, box and point regressions at strides 32, 16 and 8, relative to two
  square anchors per place.
- RetinaFace in the PyTorch form: three tables over all anchors together, whose regressions are
  scaled by 0.1 (centers and points) and 0.2 (sizes).

Shape suffixes: N anchors or faces, C channels, H and W places of a feature map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.decoding import Image
from runtime.errors import DataError

Array = NDArray[np.float32]

_STRIDES = (8, 16, 32)
LARGEST_STRIDE = max(_STRIDES)
_ANCHORS = 2
_POINTS = 5


class Faces(NamedTuple):
    """Faces in the detector's input, before overlapping ones are removed.

    Attributes:
        scores: float32 ``[n]``, 0 to 1.
        boxes: left, top, right, bottom, float32 ``[n, 4]``.
        points: float32 ``[n, 5, 2]``.
    """

    scores: Array
    boxes: Array
    points: Array


class Form(Protocol):
    """A form of outputs, and of the pixels that belongs to it."""

    def normalize(self, image: Image) -> Array:
        """Return the detector's input, float32 ``[1, 3, H, W]``, of pixels uint8 ``[H, W, 3]``."""

    def decode(self, outputs: Sequence[Array], size: tuple[int, int], least: float) -> Faces:
        """Return the faces whose scores are at least ``least``.

        ``size`` is height and width of the input, multiples of 32.

        Raises:
            DataError: the outputs have not the shapes that belong to this size.
        """


class Scrfd(Form):
    """Nine tables ``[N, C]`` (or ``[1, N, C]``): C is 1 for scores, 4 for boxes, 10 for points."""

    @override
    def normalize(self, image: Image) -> Array:
        return _planes((image.astype(np.float32) - 127.5) / 128)

    @override
    def decode(self, outputs: Sequence[Array], size: tuple[int, int], least: float) -> Faces:
        found = []
        for stride in _STRIDES:
            height, width = size[0] // stride, size[1] // stride
            count = height * width * _ANCHORS
            scores_N, sides_NC, offsets_NC = (
                _table(outputs, count, channels) for channels in (1, 4, 2 * _POINTS)
            )
            kept = np.flatnonzero(scores_N >= least)
            centers = _grid(height, width, _ANCHORS)[kept] * np.float32(stride)
            sides, offsets = sides_NC[kept] * stride, offsets_NC[kept] * stride
            boxes = np.concatenate([centers - sides[:, :2], centers + sides[:, 2:]], axis=1)
            points = centers[:, None] + offsets.reshape(-1, _POINTS, 2)
            found.append(Faces(scores_N[kept, 0], boxes, points))
        return _joined(found)


class RetinaFaceMaps(Form):
    """Nine maps ``[1, C, H, W]``: C is 4 for scores, 8 for boxes, 20 for points.

    The first half of the scores is that of the background. Anchors are squares of 16 times their
    scale, centered at 7.5 + place · stride: those of BASE_SIZE 16 and RATIOS 1. As there, a box of
    width w reaches from its center by (w - 1) / 2 to both sides.
    """

    # The sides of the two anchors of a place, in the order of the channels.
    _SIDES = {8: (32, 16), 16: (128, 64), 32: (512, 256)}
    _FIRST_CENTER = 7.5

    @override
    def normalize(self, image: Image) -> Array:
        return _planes(image.astype(np.float32))

    @override
    def decode(self, outputs: Sequence[Array], size: tuple[int, int], least: float) -> Faces:
        found = []
        for stride in _STRIDES:
            height, width = size[0] // stride, size[1] // stride
            classes, shifts, offsets = (
                _map(outputs, _ANCHORS * channels, height, width)
                for channels in (2, 4, 2 * _POINTS)
            )
            scores_N = _rows(classes[_ANCHORS:], 1)[:, 0]
            kept = np.flatnonzero(scores_N >= least)
            sides = np.tile(np.array(self._SIDES[stride], np.float32), height * width)[kept, None]
            centers = _grid(height, width, _ANCHORS)[kept] * np.float32(stride) + self._FIRST_CENTER
            boxes = _boxes(_rows(shifts, 4)[kept], centers, sides, rim=0.5)
            points = _rows(offsets, 2 * _POINTS)[kept].reshape(-1, _POINTS, 2)
            points = points * sides[:, :, None] + centers[:, None]
            found.append(Faces(scores_N[kept], boxes, points))
        return _joined(found)


class RetinaFaceTables(Form):
    """Three tables ``[1, N, C]``: C is 4 for boxes, 2 for scores (the second is the face), 10.

    Anchors are squares around the middle of each place, two per place, from fine to coarse strides.
    """

    _SIDES = {8: (16, 32), 16: (64, 128), 32: (256, 512)}
    _CENTER_SCALE, _SIZE_SCALE = np.float32(0.1), np.float32(0.2)
    # Of blue, green and red, in this order.
    _MEANS = np.array([104.0, 117.0, 123.0], np.float32)

    @override
    def normalize(self, image: Image) -> Array:
        return _planes(image[:, :, ::-1].astype(np.float32) - self._MEANS)

    @override
    def decode(self, outputs: Sequence[Array], size: tuple[int, int], least: float) -> Faces:
        grids, squares = [], []
        for stride in _STRIDES:
            height, width = size[0] // stride, size[1] // stride
            grids.append((_grid(height, width, _ANCHORS) + np.float32(0.5)) * np.float32(stride))
            squares.append(np.tile(np.array(self._SIDES[stride], np.float32), height * width))
        centers, sides = np.concatenate(grids), np.concatenate(squares)[:, None]
        shifts, classes, offsets = (
            _table(outputs, len(centers), channels) for channels in (4, 2, 2 * _POINTS)
        )
        kept = np.flatnonzero(classes[:, 1] >= least)
        centers, sides = centers[kept], sides[kept]
        scales = [self._CENTER_SCALE] * 2 + [self._SIZE_SCALE] * 2
        boxes = _boxes(shifts[kept] * np.array(scales), centers, sides, rim=0.0)
        points = offsets[kept].reshape(-1, _POINTS, 2) * self._CENTER_SCALE
        points = points * sides[:, :, None] + centers[:, None]
        return Faces(classes[kept, 1], boxes, points)


def form_of(ranks: Sequence[int]) -> Form:
    """Return the form of outputs with these numbers of dimensions.

    Raises:
        DataError: no form that is known has such outputs.
    """
    if len(ranks) == 9 and set(ranks) <= {2, 3}:
        return Scrfd()
    if len(ranks) == 9 and set(ranks) == {4}:
        return RetinaFaceMaps()
    if len(ranks) == 3 and set(ranks) <= {2, 3}:
        return RetinaFaceTables()
    hint = "; it finds faces without points: take the file with _kps" if len(ranks) == 6 else ""
    raise DataError(
        f"its {len(ranks)} outputs are neither the nine of SCRFD with five points, nor the nine or "
        f"three of RetinaFace{hint}"
    )


def _planes(image: Array) -> Array:
    return np.ascontiguousarray(image.transpose(2, 0, 1)[None], np.float32)


def _grid(height: int, width: int, repeats: int) -> Array:
    """Return column and row of every place, each as often as it has anchors, ``[N, 2]``."""
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    places: Array = np.stack([columns, rows], axis=-1).reshape(-1, 2)
    return places.repeat(repeats, axis=0)


def _table(outputs: Sequence[Array], count: int, channels: int) -> Array:
    """Return the output with so many rows and columns, ``[count, channels]``."""
    shapes = ((count, channels), (1, count, channels))
    return _only(outputs, shapes).reshape(count, channels)


def _map(outputs: Sequence[Array], channels: int, height: int, width: int) -> Array:
    """Return the map of so many channels and places, ``[channels, height, width]``."""
    maps: Array = _only(outputs, ((1, channels, height, width),))[0]
    return maps


def _only(outputs: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> Array:
    fitting = [output for output in outputs if output.shape in shapes]
    if len(fitting) != 1:
        raise DataError(
            f"{len(fitting)} of the detector's outputs have the shape {list(shapes[0])}, where one "
            "is needed; it is of another kind than its number of outputs says"
        )
    return fitting[0]


def _rows(maps_CHW: Array, channels: int) -> Array:
    """Return a row per anchor of maps that have the channels of one anchor after another."""
    return maps_CHW.transpose(1, 2, 0).reshape(-1, channels)


def _boxes(shifts_N4: Array, centers_N2: Array, sides_N1: Array, rim: float) -> Array:
    """Return boxes of regressions: centers by sides, logarithms of the sizes (R-CNN's)."""
    centers = shifts_N4[:, :2] * sides_N1 + centers_N2
    halves = np.exp(np.minimum(shifts_N4[:, 2:], 10)) * sides_N1 / 2 - np.float32(rim)
    boxes: Array = np.concatenate([centers - halves, centers + halves], axis=1)
    return boxes.astype(np.float32)


def _joined(parts: Sequence[Faces]) -> Faces:
    return Faces(*(np.concatenate(arrays) for arrays in zip(*parts)))
