"""MXNet's arithmetic, reductions and changes of shape, as nodes of ONNX.

The parts of MXNet that differ most from ONNX are here: results without axes, ends of ranges, and
shapes that are written in a language of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from evaluation.export.layers import Translate
from evaluation.export.writer import Operator, UnknownOperatorError

_LARGEST = (1 << 63) - 1


def plain(node: str, op: Operator, **attributes: Any) -> str:
    """A function of one tensor, or of several; ONNX broadcasts as MXNet does."""
    return op.emit(node, *op.values(), **attributes)


def with_number(node: str, op: Operator, *, is_reversed: bool = False) -> str:
    """A tensor and a number, which comes first if ``is_reversed``."""
    number = op.constant("scalar", op.number("scalar", 1.0))
    inputs = (number, op.value()) if is_reversed else (op.value(), number)
    return op.emit(node, *inputs)


def normalize(op: Operator) -> str:
    """Pixels without their mean, over their deviation; both are numbers, or one per channel."""
    mean, deviation = (
        op.constant(key, np.array(op.numbers(key, default), np.float64).reshape(-1, 1, 1))
        for key, default in (("mean", (0.0,)), ("std", (1.0,)))
    )
    return op.emit("Div", op.emit("Sub", op.value(), mean, part="centered"), deviation)


def clip(op: Operator) -> str:
    """No less and no more than two numbers."""
    bounds = [op.constant(key, op.number(key, 0.0)) for key in ("a_min", "a_max")]
    return op.emit("Clip", op.value(), *bounds)


def reduction(node: str, op: Operator) -> str:
    """Over some axes, or all; MXNet's result for all has the shape [1]."""
    rank = len(op.inputs[0].shape)
    given = [axis for axis in op.numbers("axis") if axis is not None]
    axes = sorted(axis % rank for axis in given) or list(range(rank))
    if op.get("exclude", False) and given:
        axes = [axis for axis in range(rank) if axis not in axes]
    keeps = op.get("keepdims", False)
    is_scalar = len(axes) == rank and not keeps
    made: dict[str, Any] = {"part": "all"} if is_scalar else {}
    # In opset 13 the axes of a sum are an input, those of the others attributes.
    inputs = (op.constant("axes", axes),) if node == "ReduceSum" else ()
    attributes: dict[str, Any] = {} if node == "ReduceSum" else {"axes": axes}
    reduced = op.emit(node, op.value(), *inputs, keepdims=int(keeps), **attributes, **made)
    return op.emit("Reshape", reduced, op.constant("shape", [1])) if is_scalar else reduced


def reshape(op: Operator) -> str:
    """To the shape that MXNet has found for it, as it has a language of its own for shapes."""
    if op.shape.count(-1) > 1:
        raise UnknownOperatorError("spreads the batch over several axes")
    return op.emit("Reshape", op.value(), op.constant("shape", op.shape))


def swap_axes(op: Operator) -> str:
    """Exchange two axes."""
    axes = list(range(len(op.shape)))
    first, second = (op.get(key, 0) for key in ("dim1", "dim2"))
    axes[first], axes[second] = axes[second], axes[first]
    return op.emit("Transpose", op.value(), perm=axes)


def transpose(op: Operator) -> str:
    """Axes in another order; by default in the opposite one."""
    axes = op.numbers("axes", range(len(op.shape))[::-1])
    return op.emit("Transpose", op.value(), perm=[axis % len(op.shape) for axis in axes])


def cut(op: Operator) -> str:
    """A range of each of the first axes; None is an end."""
    begin, end, steps = (op.numbers(key) for key in ("begin", "end", "step"))
    return _cut(op, zip_longest(range(len(begin)), begin, end, steps))


def cut_axis(op: Operator) -> str:
    """A range of one axis."""
    return _cut(op, [(op.get("axis", 0) % len(op.shape), op.get("begin"), op.get("end"), 1)])


def _cut(op: Operator, ranges: Iterable[tuple[Any, ...]]) -> str:
    """Write a ``Slice``; a range has an axis, and begin, end and step, which may be None."""
    rows = []
    for axis, begin, end, step in ranges:
        first, last = (_LARGEST, -_LARGEST) if step and step < 0 else (0, _LARGEST)
        rows.append(
            (first if begin is None else begin, last if end is None else end, axis, step or 1)
        )
    parts = zip(("starts", "stops", "axes", "steps"), zip(*rows))
    return op.emit("Slice", op.value(), *(op.constant(part, values) for part, values in parts))


def split(op: Operator) -> list[str]:
    """Parts of one size along an axis."""
    axis = op.get("axis", 1)
    parts = [op.writer.unique(f"{op.name}_output{n}") for n in range(op.get("num_outputs"))]
    op.writer.add("Split", op.name, [op.value()], op.dtype, parts, axis=axis)
    if not op.get("squeeze_axis", False):
        return parts
    axes = op.constant("axes", [axis])
    return [op.emit("Squeeze", one, axes, part=f"part{n}") for n, one in enumerate(parts)]


def tile(op: Operator) -> str:
    """Repeat along axes, which are counted from the last."""
    repeats, shape = op.numbers("reps"), op.inputs[0].shape
    data = op.value()
    if len(repeats) > len(shape):
        axes = op.constant("axes", range(len(repeats) - len(shape)))
        data = op.emit("Unsqueeze", data, axes, part="more")
    repeats = (*(1,) * (len(shape) - len(repeats)), *repeats)
    return op.emit("Tile", data, op.constant("repeats", repeats))


def pad(op: Operator) -> str:
    """A constant, or the edge, around the last axes."""
    widths = op.numbers("pad_width")
    pads = op.constant("pads", (*widths[0::2], *widths[1::2]))
    if op.get("mode") == "edge":
        return op.emit("Pad", op.value(), pads, mode="edge")
    constant = op.constant("constant", op.number("constant_value", 0.0))
    return op.emit("Pad", op.value(), pads, constant, mode="constant")


# MXNet's first names: whatever a file calls them, MXNet writes these.
_FUNCTIONS = {
    "abs": "Abs",
    "exp": "Exp",
    "log": "Log",
    "negative": "Neg",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
}
_REDUCTIONS = {"max": "ReduceMax", "mean": "ReduceMean", "min": "ReduceMin", "sum": "ReduceSum"}
_ELEMENTWISE = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}
_OTHERS = {"power": "Pow", "maximum": "Max", "minimum": "Min"}
_WITH_NUMBER = {"plus": "Add", "minus": "Sub", "mul": "Mul", "div": "Div", **_OTHERS}
_REVERSED = {"minus": "Sub", "div": "Div"}

TENSORS: Mapping[str, Translate] = {
    **{name: partial(plain, node) for name, node in _FUNCTIONS.items()},
    **{name: partial(reduction, node) for name, node in _REDUCTIONS.items()},
    **{f"elemwise_{name}": partial(plain, node) for name, node in _ELEMENTWISE.items()},
    **{
        f"broadcast_{name}": partial(plain, node)
        for name, node in (*_ELEMENTWISE.items(), *_OTHERS.items())
    },
    **{f"_{name}": partial(plain, node) for name, node in _OTHERS.items()},
    **{f"_{name}_scalar": partial(with_number, node) for name, node in _WITH_NUMBER.items()},
    **{
        f"_r{name}_scalar": partial(with_number, node, is_reversed=True)
        for name, node in _REVERSED.items()
    },
    # A Cast is left out: each operator decides if it computes in float16.
    **{name: lambda op: op.inputs[0].name for name in ("BlockGrad", "Cast", "Dropout", "_copy")},
    "Concat": lambda op: op.emit("Concat", *op.values(), axis=op.get("dim", 1)),
    "Flatten": partial(plain, "Flatten", axis=1),
    "Pad": pad,
    "Reshape": reshape,
    "SliceChannel": split,
    "SwapAxis": swap_axes,
    "_image_normalize": normalize,
    "add_n": partial(plain, "Sum"),
    "clip": clip,
    "rsqrt": lambda op: op.emit("Reciprocal", op.emit("Sqrt", op.value(), part="root")),
    "slice": cut,
    "slice_axis": cut_axis,
    "square": lambda op: op.emit("Mul", op.value(), op.value()),
    "tile": tile,
    "transpose": transpose,
}
