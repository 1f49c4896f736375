"""MXNet's layers, as nodes of ONNX: what has parameters, pooling, and activations.

Defaults are those of MXNet's operators. Where ONNX leaves room for more than one reading, or
programs are known to differ, a form is chosen that has one: pooling gets the padding as numbers, so
no program rounds sizes by itself; and no ``Pad`` stands before pooling, since ONNX Runtime merges
the two and then does not count the zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Union

import numpy as np
from numpy.typing import NDArray

from evaluation.export.attributes import UnknownOperatorError
from evaluation.export.writer import Operator

Translate = Callable[[Operator], Union[str, list[str]]]
"""Writes the nodes of an operator; returns its output, or its outputs."""


def convolution(op: Operator) -> str:
    """A convolution; weight and bias as in MXNet."""
    kernel = op.attributes.numbers("kernel")
    ones, zeros = (1,) * len(kernel), (0,) * len(kernel)
    op.attributes.expect("layout", "None", "NCHW", "NCW", "NCDHW")
    pad = op.attributes.numbers("pad") or zeros
    return op.emit(
        "Conv",
        *op.values(),
        kernel_shape=kernel,
        strides=op.attributes.numbers("stride") or ones,
        dilations=op.attributes.numbers("dilate") or ones,
        pads=(*pad, *pad),
        group=op.attributes.integer("num_group", 1),
    )


def linear(op: Operator) -> str:
    """A product with the weight [n, k]; by default of all axes but the first as one."""
    data, rank = op.value(), len(op.inputs[0].shape)
    weight, *bias = (op.value(index) for index in range(1, len(op.inputs)))
    if op.attributes.flag("flatten", True) or rank == 2:
        if rank != 2:
            data = op.emit("Flatten", data, part="flat", axis=1)
        return op.emit("Gemm", data, weight, *bias, transB=1)
    columns = op.emit("Transpose", weight, part="columns", perm=(1, 0))
    if not bias:
        return op.emit("MatMul", data, columns)
    return op.emit("Add", op.emit("MatMul", data, columns, part="product"), *bias)


def batch_norm(op: Operator) -> str:
    """BatchNorm with its running statistics; a fixed gamma is one, whatever the file has."""
    rank = len(op.inputs[0].shape)
    axis = op.attributes.integer("axis", 1)
    if axis % rank != 1:
        raise UnknownOperatorError(f"normalizes axis {axis}, and ONNX the axis 1")
    op.attributes.expect("output_mean_var", "False")
    gamma = op.array(1)
    scale = (
        op.constant("ones", np.ones_like(gamma))
        if op.attributes.flag("fix_gamma", True)
        else op.value(1)
    )
    inputs = (op.value(), scale, *(op.value(index) for index in (2, 3, 4)))
    return op.emit("BatchNormalization", *inputs, epsilon=op.attributes.number("eps", 1e-3))


def instance_norm(op: Operator) -> str:
    """Mean and variance of each map of each image."""
    return op.emit("InstanceNormalization", *op.values(), epsilon=op.attributes.number("eps", 1e-3))


def layer_norm(op: Operator) -> str:
    """Mean and variance over one axis, written out: ONNX has a node for it since opset 17."""
    rank = len(op.shape)
    axis = op.attributes.integer("axis", -1) % rank
    op.attributes.expect("output_mean_var", "False")
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
    epsilon = op.constant("epsilon", op.attributes.number("eps", 1e-5))
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
    }[op.attributes.text("mode", "instance")]
    squares = op.emit("Mul", op.value(), op.value(), part="squares")
    total = op.emit("ReduceSum", squares, op.integers("axes", axes), part="total", keepdims=1)
    epsilon = op.constant("epsilon", op.attributes.number("eps", 1e-10))
    norm = op.emit("Sqrt", op.emit("Add", total, epsilon, part="sum"), part="norm")
    return op.emit("Div", op.value(), norm)


def leaky_relu(op: Operator) -> str:
    """MXNet's family of activations that are not zero below zero."""
    kind, slope = op.attributes.text("act_type", "leaky"), op.attributes.number("slope", 0.25)
    lower = op.attributes.number("lower_bound", 0.125)
    upper = op.attributes.number("upper_bound", 0.334)
    if kind == "prelu":
        # ONNX aligns the slope with the last axes: one per channel is [C, 1, 1].
        behind = len(op.shape) - 2
        slopes = op.array(1).reshape(-1, *(1,) * behind)
        return op.emit("PRelu", op.value(), op.constant("slope", slopes))
    if kind == "rrelu":
        # Drawn in training; the mean of its bounds in inference.
        kind, slope = "leaky", (lower + upper) / 2
    if kind == "leaky":
        return op.emit("LeakyRelu", op.value(), alpha=slope)
    if kind == "elu":
        return op.emit("Elu", op.value(), alpha=slope)
    if kind == "selu":
        return op.emit("Selu", op.value())
    if kind == "gelu":
        share = op.emit("Mul", op.value(), op.constant("root", math.sqrt(0.5)), part="share")
        error = op.emit("Erf", share, part="erf")
        twice = op.emit("Add", error, op.constant("one", 1.0), part="twice")
        half = op.emit("Mul", op.value(), op.constant("half", 0.5), part="half")
        return op.emit("Mul", half, twice)
    raise UnknownOperatorError(f"is the activation {kind!r}, for which there is no translation")


def activation(op: Operator) -> str:
    """One of the activations without parameters."""
    kind = op.attributes.text("act_type", "")
    if kind not in _ACTIVATIONS:
        raise UnknownOperatorError(f"is the activation {kind!r}, for which there is no translation")
    return op.emit(_ACTIVATIONS[kind], op.value())


class _Window(NamedTuple):
    """Sizes of pooling along the axes behind the channels."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    behind: tuple[int, ...]
    """What the last window reads beyond the padding ("full": sizes are rounded up)."""

    def padding(self) -> tuple[int, ...]:
        ends = tuple(pad + more for pad, more in zip(self.pad, self.behind))
        return (*self.pad, *ends)

    def counts(self, sides: tuple[int, ...], made: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the elements of each window, with those of the padding but not behind it."""
        product = np.ones((1,))
        for side, count, size, step, pad in zip(sides, made, self.kernel, self.stride, self.pad):
            starts = np.arange(count) * step
            within = np.minimum(starts + size, side + 2 * pad) - starts
            product = product[..., np.newaxis] * within
        return product


def pooling(op: Operator) -> str:
    """Pooling, of windows or of whole maps."""
    op.attributes.expect("layout", "None", "NCHW", "NCW", "NCDHW")
    # Of L2 pooling; with other powers MXNet adds up signed values, and ONNX absolute ones.
    op.attributes.expect("p_value", "2", "None")
    kind = op.attributes.text("pool_type", "max")
    counts_pad = op.attributes.flag("count_include_pad", True)
    is_global = op.attributes.flag("global_pool", False)
    window = _window(op)
    if is_global:
        return _global_pooling(op, kind)
    sizes: dict[str, Any] = {"kernel_shape": window.kernel, "strides": window.stride}
    sizes["pads"] = window.padding()
    if kind == "max":
        return op.emit("MaxPool", op.value(), **sizes)
    if kind == "lp":
        return op.emit("LpPool", op.value(), p=2, **sizes)
    if kind == "avg" and not counts_pad:
        return op.emit("AveragePool", op.value(), count_include_pad=0, **sizes)
    if kind == "avg" and not any(window.behind):
        return op.emit("AveragePool", op.value(), count_include_pad=1, **sizes)
    # Sums of windows, over what MXNet divides them by: it counts the padding, and nothing behind.
    mean = op.emit("AveragePool", op.value(), part="mean", count_include_pad=1, **sizes)
    counts = window.counts(op.inputs[0].shape[2:], op.shape[2:]) if kind == "avg" else 1.0
    return op.emit("Mul", mean, op.constant("factor", math.prod(window.kernel) / counts))


def _window(op: Operator) -> _Window:
    sides, made = op.inputs[0].shape[2:], op.shape[2:]
    kernel = op.attributes.numbers("kernel") or (1,) * len(sides)
    stride = op.attributes.numbers("stride") or (1,) * len(sides)
    pad = op.attributes.numbers("pad") or (0,) * len(sides)
    op.attributes.expect("pooling_convention", "valid", "full")
    ends = [(count - 1) * step + size for count, step, size in zip(made, stride, kernel)]
    behind = tuple(max(0, end - side - 2 * one) for end, side, one in zip(ends, sides, pad))
    starts = [(count - 1) * step - one for count, step, one in zip(made, stride, pad)]
    if any(start >= side for start, side in zip(starts, sides)):
        raise UnknownOperatorError("has windows that lie outside of the maps")
    return _Window(kernel, stride, pad, behind)


def _global_pooling(op: Operator, kind: str) -> str:
    if kind == "sum":
        axes = op.integers("axes", range(2, len(op.shape)))
        return op.emit("ReduceSum", op.value(), axes, keepdims=1)
    if kind == "lp":
        return op.emit("GlobalLpPool", op.value(), p=2)
    return op.emit({"max": "GlobalMaxPool", "avg": "GlobalAveragePool"}[kind], op.value())


def adaptive_average(op: Operator) -> str:
    """Means over parts of the maps: a product with a matrix of weights on either side."""
    wanted = op.attributes.numbers("output_size") or (1,)
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


def hard_sigmoid(op: Operator) -> str:
    """A line, cut off at 0 and 1."""
    alpha, beta = op.attributes.number("alpha", 0.2), op.attributes.number("beta", 0.5)
    return op.emit("HardSigmoid", op.value(), alpha=alpha, beta=beta)


_ACTIVATIONS = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "softrelu": "Softplus",
    "softsign": "Softsign",
    "tanh": "Tanh",
}
LAYERS: Mapping[str, Translate] = {
    "Activation": activation,
    "BatchNorm": batch_norm,
    "Convolution": convolution,
    "FullyConnected": linear,
    "InstanceNorm": instance_norm,
    "L2Normalization": l2_normalization,
    "LayerNorm": layer_norm,
    "LeakyReLU": leaky_relu,
    "Pooling": pooling,
    "_contrib_AdaptiveAvgPooling2D": adaptive_average,
    "hard_sigmoid": hard_sigmoid,
}
