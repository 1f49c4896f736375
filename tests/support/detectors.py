"""ONNX detectors that see what a test plants: graphs whose outputs are constants.

Where a test asks for it, scores are multiplied by one number of the input: then a face is found
only if the pixels arrive as they should.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

# Before onnx, whose protobuf would crash MXNet in its compiled form.
import runtime.mxnet  # noqa: F401

onnx, helper, numpy_helper = map(
    importlib.import_module, ("onnx", "onnx.helper", "onnx.numpy_helper")
)
TensorProto = onnx.TensorProto

STRIDES = (8, 16, 32)
FORMS = ("scrfd", "scrfd batched", "maps", "tables")


class Planted(NamedTuple):
    """A face in the coordinates of the detector's input."""

    points: np.ndarray
    """``[5, 2]``"""
    box: np.ndarray
    """left, top, right, bottom"""
    score: float = 0.9


def planted(points: np.ndarray, score: float = 0.9) -> Planted:
    """Return a face whose box lies around its points."""
    low, high = points.min(axis=0), points.max(axis=0)
    rim = 0.6 * (high - low)
    return Planted(points, np.concatenate([low - rim, high + rim]), score)


def write_detector(
    path: Path, form: str, faces: list[Planted], side: int = 320, dynamic: bool = False
) -> Path:
    """Write a detector that always finds these faces, in an input of ``side`` x ``side``."""
    return _write(path, outputs_of(form, faces, side), side, dynamic, None)


def write_looking_detector(
    path: Path, form: str, face: Planted, side: int, looks_at: tuple[int, int, int]
) -> Path:
    """Write a detector whose scores are multiplied by the input at (channel, row, column)."""
    return _write(path, outputs_of(form, [face], side), side, False, looks_at)


def write_identity(path: Path, kind: str, shape: list[int]) -> Path:
    """Write a network that is no detector: it returns its input, ``float`` or ``uint8``.

    With ``string`` or ``sequence`` it takes floats, and returns them in this form.
    """
    number = TensorProto.UINT8 if kind == "uint8" else TensorProto.FLOAT
    data = helper.make_tensor_value_info("x", number, shape)
    if kind == "string":
        out = helper.make_tensor_value_info("y", TensorProto.STRING, None)
        node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)
    elif kind == "sequence":
        out = helper.make_tensor_sequence_value_info("y", number, None)
        node = helper.make_node("SequenceConstruct", ["x"], ["y"])
    else:
        out = helper.make_tensor_value_info("y", number, None)
        node = helper.make_node("Identity", ["x"], ["y"])
    return _save(path, helper.make_graph([node], "identity", [data], [out]))


def outputs_of(form: str, faces: list[Planted], side: int) -> list[np.ndarray]:
    """Return the outputs of a form, encoded by its definition, one anchor per face."""
    if form.startswith("scrfd"):
        arrays = _scrfd(faces, side)
        return [array[None] for array in arrays] if "batched" in form else arrays
    return _maps(faces, side) if form == "maps" else _tables(faces, side)


def _cell(face: Planted, stride: int) -> tuple[int, int]:
    """Column and row of the place at the middle of a face."""
    x, y = (face.box[:2] + face.box[2:]) / 2
    return int(x) // stride, int(y) // stride


def _scrfd(faces: list[Planted], side: int) -> list[np.ndarray]:
    by_kind: list[list[np.ndarray]] = [[], [], []]
    for stride in STRIDES:
        count = (side // stride) ** 2 * 2
        scores, boxes, points = (np.zeros((count, n), np.float32) for n in (1, 4, 10))
        for number, face in enumerate(faces):
            if STRIDES[number % 3] == stride:
                x, y = _cell(face, stride)
                row = (y * (side // stride) + x) * 2 + number % 2
                center = np.array([x, y]) * stride
                scores[row] = face.score
                boxes[row, :2] = (center - face.box[:2]) / stride
                boxes[row, 2:] = (face.box[2:] - center) / stride
                points[row] = ((face.points - center) / stride).ravel()
        for kind, array in zip(by_kind, (scores, boxes, points)):
            kind.append(array)
    return [array for kind in by_kind for array in kind]


def _maps(faces: list[Planted], side: int) -> list[np.ndarray]:
    outputs = []
    for stride, scales in ((32, (32, 16)), (16, (8, 4)), (8, (2, 1))):
        cells = side // stride
        classes, boxes, points = (np.zeros((1, n, cells, cells), np.float32) for n in (4, 8, 20))
        classes[:, :2] = 1
        for number, face in enumerate(faces):
            if STRIDES[number % 3] == stride:
                (x, y), anchor = _cell(face, stride), number % 2
                size = 16 * scales[anchor]
                center = np.array([x, y]) * stride + 7.5
                extent = face.box[2:] - face.box[:2] + 1
                middle = (face.box[:2] + face.box[2:]) / 2
                classes[0, [anchor, 2 + anchor], y, x] = 1 - face.score, face.score
                boxes[0, 4 * anchor : 4 * anchor + 2, y, x] = (middle - center) / size
                boxes[0, 4 * anchor + 2 : 4 * anchor + 4, y, x] = np.log(extent / size)
                relative = ((face.points - center) / size).ravel()
                points[0, 10 * anchor : 10 * anchor + 10, y, x] = relative
        outputs += [classes, boxes, points]
    return outputs


def _tables(faces: list[Planted], side: int) -> list[np.ndarray]:
    count = sum((side // stride) ** 2 * 2 for stride in STRIDES)
    boxes, classes, points = (np.zeros((1, count, n), np.float32) for n in (4, 2, 10))
    classes[:, :, 0] = 1
    for number, face in enumerate(faces):
        level, anchor = number % 3, number % 2
        stride = STRIDES[level]
        size = (16, 32, 64, 128, 256, 512)[2 * level + anchor]
        x, y = _cell(face, stride)
        before = sum((side // other) ** 2 * 2 for other in STRIDES[:level])
        row = before + (y * (side // stride) + x) * 2 + anchor
        center = (np.array([x, y]) + 0.5) * stride
        boxes[0, row, :2] = ((face.box[:2] + face.box[2:]) / 2 - center) / (0.1 * size)
        boxes[0, row, 2:] = np.log((face.box[2:] - face.box[:2]) / size) / 0.2
        classes[0, row] = 1 - face.score, face.score
        points[0, row] = ((face.points - center) / (0.1 * size)).ravel()
    return [boxes, classes, points]


def _write(
    path: Path,
    outputs: list[np.ndarray],
    side: int,
    dynamic: bool,
    looks_at: Optional[tuple[int, int, int]],
) -> Path:
    shape: list[Any] = [1, 3, "?", "?"] if dynamic else [1, 3, side, side]
    data = helper.make_tensor_value_info("input.1", TensorProto.FLOAT, shape)
    nodes, infos, constants = [], [], []
    if looks_at is not None:
        for name, ends in (("low", looks_at), ("high", [place + 1 for place in looks_at])):
            constants.append(numpy_helper.from_array(np.array(ends, np.int64), name))
        constants.append(numpy_helper.from_array(np.array([1, 2, 3], np.int64), "axes"))
        constants.append(numpy_helper.from_array(np.array([1], np.int64), "one"))
        nodes.append(helper.make_node("Slice", ["input.1", "low", "high", "axes"], ["pixel"]))
        nodes.append(helper.make_node("Reshape", ["pixel", "one"], ["seen"]))
    for number, array in enumerate(outputs):
        is_score = array.shape[-1] in (1, 2) or (array.ndim == 4 and array.shape[1] == 4)
        constants.append(numpy_helper.from_array(array, f"constant{number}"))
        seen = looks_at is not None and is_score
        nodes.append(
            helper.make_node("Mul", [f"constant{number}", "seen"], [f"out{number}"])
            if seen
            else helper.make_node("Identity", [f"constant{number}"], [f"out{number}"])
        )
        infos.append(helper.make_tensor_value_info(f"out{number}", TensorProto.FLOAT, array.shape))
    return _save(path, helper.make_graph(nodes, "detector", [data], infos, constants))


def _save(path: Path, graph: Any) -> Path:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    onnx.save(model, str(path))
    return path
