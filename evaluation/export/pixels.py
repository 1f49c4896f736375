"""What a graph does with the pixels before its first layer, as one subtraction and one product.

InsightFace's client decides by the first eight nodes how it scales the pixels: if the names of some
begin with "Sub" (or "_minus") and "Mul" ("_mul"), the graph gets them as they are, 0 to 255;
otherwise (x - 127.5) / 127.5. The graphs of this toolkit and InsightFace's for MXNet get them as
they are, however they go on: with (x - 127.5) / 128, with mean and deviation per channel, or with
a BatchNorm. So each exported graph begins with these two nodes, and, if they compute too much,
with those that undo it. No two constants meet, so a program that folds constants leaves the nodes.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluation.export.writer import SINGLE, Writer

if TYPE_CHECKING:
    from backbones.checkpoint import Checkpoint

INPUT = "data"
"""Name of the input, in MXNet and in ONNX."""
_MIDDLE = 127.5
_SAME = frozenset("BlockGrad Cast _copy".split())


class Scaling(NamedTuple):
    """``factor * (x - mean)``, for all channels or for each.

    Attributes:
        mean: a number, or [channels, 1, 1].
        factor: likewise.
        last: the number of the node that gives it, or that of the input.
    """

    mean: NDArray[np.float64]
    factor: NDArray[np.float64]
    last: int


def read_scaling(found: Checkpoint) -> Scaling:
    """Return what the nodes after ``data`` compute, as long as each alone reads the one before."""
    nodes, attributes_of = found.graph["nodes"], found.attributes()
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        for entry in node["inputs"]:
            readers.setdefault(entry[0], []).append(index)
    factor: NDArray[np.float64] = np.array(1.0)
    offset: NDArray[np.float64] = np.array(0.0)
    last = next(number for number, node in enumerate(nodes) if node["name"] == INPUT)
    # The last node of a graph gives the result, and stays one.
    while len(readers.get(last, [])) == 1 and readers[last][0] != len(nodes) - 1:
        index = readers[last][0]
        step = _step(nodes[index]["op"], attributes_of[index])
        if step is None or not np.all(step[0]):
            break
        factor, offset, last = factor * step[0], offset * step[0] + step[1], index
    factor, offset = np.broadcast_arrays(factor, offset)
    return Scaling(-offset / factor, factor, last)


def _step(operator: str, attributes: Mapping[str, str]) -> Any:
    """Return factor and offset of a node; None if it computes something else."""
    if operator in _SAME:
        return 1.0, 0.0
    if operator == "_image_normalize":
        mean, deviation = (
            np.reshape(ast.literal_eval(attributes.get(key, default)), (-1, 1, 1))
            for key, default in (("mean", "0.0"), ("std", "1.0"))
        )
        return 1.0 / deviation, -mean / deviation
    number = np.float64(attributes.get("scalar", 1.0))
    with np.errstate(divide="ignore"):
        steps = {
            "_plus_scalar": (1.0, number),
            "_minus_scalar": (1.0, -number),
            "_mul_scalar": (number, 0.0),
            "_div_scalar": (1 / number, 0.0),
        }
    return steps.get(operator)


def write_scaling(writer: Writer, value: str, scaling: Scaling) -> str:
    """Append the nodes; returns the value that they give."""
    mean, factor = scaling.mean, scaling.factor
    # A subtraction of 0 or a product with 1 is a node that programs take out. These numbers are
    # exact, and so is what is computed with them from whole pixels.
    has_mean, has_factor = np.any(mean), np.any(factor != 1)
    middle = mean if has_mean else np.full_like(mean, _MIDDLE)
    product = factor if has_factor else factor * 2
    steps = [("Sub", "mean", middle), ("Mul", "scale", product)]
    steps += [] if has_mean else [("Add", "offset", middle * product)]
    steps += [] if has_factor else [("Mul", "half", np.full_like(factor, 0.5))]
    for operator, part, number in steps:
        constant = writer.constant(writer.unique(f"pixels_{part}"), number, SINGLE)
        name = writer.unique(f"{operator}_{part}")
        value = writer.add(operator, name, [value, constant], SINGLE)
    return value
