"""MXNet's layers, as nodes of ONNX: what has parameters, pooling, and activations.

Defaults are those of MXNet's operators. Where ONNX leaves room for more than one reading, or
programs are known to differ, a form is chosen that has one: pooling gets the padding as numbers, so
no program rounds sizes by itself; and no ``Pad`` stands before pooling, since ONNX Runtime merges
the two and then does not count the zeros.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from evaluation.export.writer import Operator, UnknownOperatorError

Translate = Callable[[Operator], Union[str, list[str]]]
"""Writes the nodes of an operator; returns its output, or its outputs."""


def convolution(op: Operator) -> str:
    """A convolution; weight and bias as in MXNet."""
    kernel = op.numbers("kernel")
    pad = op.numbers("pad", (0, 0))
    return op.emit(
        "Conv",
        *op.values(),
        kernel_shape=kernel,
        strides=op.numbers("stride", (1, 1)),
        dilations=op.numbers("dilate", (1, 1)),
        pads=(*pad, *pad),
        group=op.get("num_group", 1),
    )


def linear(op: Operator) -> str:
    """A product with the weight [n, k]; by default of all axes but the first as one."""
    data, rank = op.value(), len(op.inputs[0].shape)
    weight, *bias = (op.value(index) for index in range(1, len(op.inputs)))
    if op.get("flatten", True) or rank == 2:
        if rank != 2:
            data = op.emit("Flatten", data, part="flat", axis=1)
        return op.emit("Gemm", data, weight, *bias, transB=1)
    columns = op.emit("Transpose", weight, part="columns", perm=(1, 0))
    if not bias:
        return op.emit("MatMul", data, columns)
    return op.emit("Add", op.emit("MatMul", data, columns, part="product"), *bias)


def batch_norm(op: Operator) -> str:
    """BatchNorm with its running statistics; a fixed gamma is one, whatever the file has."""
    axis = op.get("axis", 1)
    if axis % len(op.shape) != 1:
        raise UnknownOperatorError(f"normalizes axis {axis}, and ONNX the axis 1")
    is_fixed = op.get("fix_gamma", True)
    gamma = op.constant("ones", np.ones(op.inputs[1].shape)) if is_fixed else op.value(1)
    inputs = (op.value(), gamma, *map(op.value, (2, 3, 4)))
    return op.emit("BatchNormalization", *inputs, epsilon=op.number("eps", 1e-3))


def layer_norm(op: Operator) -> str:
    """Mean and variance over one axis, written out: ONNX has a node for it since opset 17."""
    rank = len(op.shape)
    axis = op.get("axis", -1) % rank
    along = [1] * rank
    along[axis] = -1
    gamma, beta = (
        op.constant(part, op.array(index).reshape(along))
        for part, index in (("scale", 1), ("shift", 2))
    )
    mean = op.emit("ReduceMean", op.value(), part="mean", axes=(axis,), keepdims=1)
    centered = op.emit("Sub", op.value(), mean, part="centered")
    squares = op.emit("Mul", centered, centered, part="squares")
    variance = op.emit("ReduceMean", squares, part="variance", axes=(axis,), keepdims=1)
    epsilon = op.constant("epsilon", op.number("eps", 1e-5))
    deviation = op.emit("Sqrt", op.emit("Add", variance, epsilon, part="sum"), part="deviation")
    normalized = op.emit("Div", centered, deviation, part="normalized")
    return op.emit("Add", op.emit("Mul", normalized, gamma, part="scaled"), beta)


def l2_normalization(op: Operator) -> str:
    """Division by the root of the sum of squares, over one of three sets of axes."""
    rank = len(op.shape)
    axes = {
        "instance": tuple(range(1, rank)),
        "channel": (1,),
        "spatial": tuple(range(2, rank)),
    }[op.get("mode", "instance")]
    squares = op.emit("Mul", op.value(), op.value(), part="squares")
    total = op.emit("ReduceSum", squares, op.constant("axes", axes), part="total", keepdims=1)
    epsilon = op.constant("epsilon", op.number("eps", 1e-10))
    norm = op.emit("Sqrt", op.emit("Add", total, epsilon, part="sum"), part="norm")
    return op.emit("Div", op.value(), norm)


def leaky_relu(op: Operator) -> str:
    """MXNet's family of activations that are not zero below zero."""
    kind, slope = op.get("act_type", "leaky"), op.number("slope", 0.25)
    if kind == "prelu":
        # ONNX aligns the slope with the last axes: one per channel is [C, 1, 1].
        slopes = op.array(1).reshape(-1, *(1,) * (len(op.shape) - 2))
        return op.emit("PRelu", op.value(), op.constant("slope", slopes))
    if kind == "gelu":
        share = op.emit("Mul", op.value(), op.constant("root", math.sqrt(0.5)), part="share")
        error = op.emit("Erf", share, part="erf")
        twice = op.emit("Add", error, op.constant("one", 1.0), part="twice")
        half = op.emit("Mul", op.value(), op.constant("half", 0.5), part="half")
        return op.emit("Mul", half, twice)
    if kind == "selu":
        return op.emit("Selu", op.value())
    if kind == "rrelu":
        # Drawn in training; the mean of its bounds in inference.
        slope = (op.number("lower_bound", 0.125) + op.number("upper_bound", 0.334)) / 2
    return op.emit("Elu" if kind == "elu" else "LeakyRelu", op.value(), alpha=slope)


def pooling(op: Operator) -> str:
    """Pooling, of windows or of whole maps."""
    kind = op.get("pool_type", "max")
    if op.get("global_pool", False):
        if kind == "sum":
            axes = op.constant("axes", range(2, len(op.shape)))
            return op.emit("ReduceSum", op.value(), axes, keepdims=1)
        return op.emit({"max": "GlobalMaxPool", "avg": "GlobalAveragePool"}[kind], op.value())
    kernel, pad = op.numbers("kernel"), op.numbers("pad", (0, 0))
    stride = op.numbers("stride", (1, 1))
    windows = list(zip(op.inputs[0].shape[2:], op.shape[2:], kernel, stride, pad))
    if any((count - 1) * step - one >= side for side, count, _, step, one in windows):
        raise UnknownOperatorError("has windows that lie outside of the maps")
    # With "full", sizes are rounded up, and the last window reads beyond the padding.
    more = [
        max(0, (count - 1) * step + size - side - 2 * one)
        for side, count, size, step, one in windows
    ]
    sizes: dict[str, Any] = {"kernel_shape": kernel, "strides": stride}
    sizes["pads"] = (*pad, *map(operator.add, pad, more))
    if kind == "max":
        return op.emit("MaxPool", op.value(), **sizes)
    counts_pad = op.get("count_include_pad") is not False
    if kind == "avg" and not (counts_pad and any(more)):
        return op.emit("AveragePool", op.value(), count_include_pad=int(counts_pad), **sizes)
    # Sums of windows, over what MXNet divides them by: it counts the padding, and nothing after.
    mean = op.emit("AveragePool", op.value(), part="mean", count_include_pad=1, **sizes)
    counts: NDArray[Any] = np.ones(1)
    if kind == "avg":
        for side, count, size, step, one in windows:
            starts = np.arange(count) * step
            counts = counts[..., np.newaxis] * (np.minimum(starts + size, side + 2 * one) - starts)
    return op.emit("Mul", mean, op.constant("factor", math.prod(kernel) / counts))


def adaptive_average(op: Operator) -> str:
    """Means over parts of the maps: a product with a matrix of weights on either side."""
    wanted = op.numbers("output_size", (1,))
    rows, columns = wanted if len(wanted) == 2 else wanted * 2
    if rows == columns == 1:
        return op.emit("GlobalAveragePool", op.value())
    height, width = op.inputs[0].shape[2:]
    left = op.constant("rows", _means(height, rows))
    right = op.constant("columns", _means(width, columns).T)
    return op.emit("MatMul", op.emit("MatMul", left, op.value(), part="product"), right)


def _means(size: int, parts: int) -> NDArray[np.float64]:
    """Row i has the mean of part i, which goes from floor(i n / p) to ceil((i + 1) n / p)."""
    weights = np.zeros((parts, size))
    for part in range(parts):
        start, stop = part * size // parts, -(-(part + 1) * size // parts)
        weights[part, start:stop] = 1 / (stop - start)
    return weights


_ACTIVATIONS = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "softrelu": "Softplus",
    "softsign": "Softsign",
    "tanh": "Tanh",
}
LAYERS: Mapping[str, Translate] = {
    "Activation": lambda op: op.emit(_ACTIVATIONS[op.get("act_type")], op.value()),
    "BatchNorm": batch_norm,
    "Convolution": convolution,
    "FullyConnected": linear,
    "InstanceNorm": lambda op: op.emit(
        "InstanceNormalization", *op.values(), epsilon=op.number("eps", 1e-3)
    ),
    "L2Normalization": l2_normalization,
    "LayerNorm": layer_norm,
    "LeakyReLU": leaky_relu,
    "Pooling": pooling,
    "_contrib_AdaptiveAvgPooling2D": adaptive_average,
    "hard_sigmoid": lambda op: op.emit(
        "HardSigmoid", op.value(), alpha=op.number("alpha", 0.2), beta=op.number("beta", 0.5)
    ),
}
