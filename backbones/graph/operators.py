"""The operators and attributes that a graph from a file may have.

Some operators of MXNet call back through an address that an attribute holds, and some divide by an
attribute, read at a position that it gives, or allocate as much memory as it says. So a graph from
a file may only have the operators of a table, each with its own attributes, every value of the type
and in the range of the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from backbones.graph.attribute_kinds import (
    Kind,
    flag,
    integer,
    one_of,
    optional,
    real,
    several,
    target_shape,
)
from backbones.graph.nodes import Node

MAX_TEXT = 256
MAX_INPUTS = 64
_MAX_SPLITS = 64
LAYERS = frozenset("BatchNorm Convolution FullyConnected InstanceNorm LayerNorm LeakyReLU".split())
"""Their inputs after the first are parameters, whose shapes MXNet does not check."""
_SPLITS = ("SliceChannel", "split")


class GraphError(Exception):
    """The file is damaged, or this reader does not support it; the message says where."""


class Operator(NamedTuple):
    """A row of the table.

    Attributes:
        inputs: number of inputs; ``num_args`` inputs if it is 0. Layers without bias have one less.
        attributes: the type and range of each attribute.
    """

    inputs: int
    attributes: Mapping[str, Kind]


def _rows(names: str, inputs: int, **attributes: Kind) -> dict[str, Operator]:
    """Return rows of the table, all alike, by the names of their operators."""
    return dict.fromkeys(names.split(), Operator(inputs, attributes))


_WINDOW_SIDE, _MAX_CHANNELS = 1024, 1 << 17
_sides = several(integer(1, _WINDOW_SIDE), 0, 2)
_padding = several(integer(0, _WINDOW_SIDE), 0, 2)
_channels = integer(1, _MAX_CHANNELS)
_axis = integer(-2, 5)
_axes = optional(several(_axis, *range(6), is_bare_allowed=True))
_split_count = integer(1, _MAX_SPLITS)
_epsilon = real(0, 1)
_number = real(-3e38, 3e38)
# Indices into a tensor of at most six dimensions; None stands for an end.
_index = optional(integer(-9_999_999, 9_999_999))
_indices = several(_index, *range(1, 7), is_bare_allowed=True)
# MXNet divides by a step.
_steps = several(
    lambda value: None if value.lstrip("-0") in ("", "L") else _index(value), *range(7)
)
# One number, or one for each of three channels.
_per_channel = several(_number, 1, 3, is_bare_allowed=True)

_CUDNN = {"cudnn_off": flag, "layout": one_of("None", "NCHW")}
# More outputs than one, and statistics of a quantized network.
_NORMALIZATION = {"eps": _epsilon, "output_mean_var": one_of("False")}
_WINDOW = {"kernel": _sides, "stride": _sides, "pad": _padding}

# Operators of this project's networks: MXNet runs them without a trial, see ``is_common``.
_COMMON: Mapping[str, Operator] = {
    **_rows("null", 0),
    **_rows("Activation", 1, act_type=one_of("relu", "sigmoid", "softrelu", "softsign", "tanh")),
    **_rows(
        "BatchNorm",
        5,
        **_NORMALIZATION,
        **dict.fromkeys(("fix_gamma", "use_global_stats", "cudnn_off"), flag),
        **dict.fromkeys(("min_calib_range", "max_calib_range"), one_of("None")),
        momentum=real(0, 1),
        axis=integer(-1, 3),
    ),
    **_rows(
        "Convolution",
        3,
        **_WINDOW,
        **_CUDNN,
        workspace=integer(0, 1 << 16),
        no_bias=flag,
        cudnn_tune=one_of("None", "off", "limited_workspace", "fastest"),
        dilate=_sides,
        num_filter=_channels,
        num_group=_channels,
    ),
    **_rows("FullyConnected", 3, num_hidden=_channels, no_bias=flag, flatten=flag),
    **_rows(
        "LeakyReLU",
        1,
        act_type=one_of("elu", "gelu", "leaky", "prelu", "rrelu", "selu"),
        **dict.fromkeys(("slope", "lower_bound", "upper_bound"), real(-1e6, 1e6)),
    ),
    **_rows(
        "Pooling",
        1,
        **_WINDOW,
        **_CUDNN,
        pool_type=one_of("avg", "max", "sum"),
        global_pool=flag,
        pooling_convention=one_of("full", "valid"),
        count_include_pad=optional(flag),
        p_value=one_of("None"),
    ),
    # MXNet writes at the positions of "axes" without a check.
    **_rows(
        "Dropout",
        1,
        p=real(0, 1),
        mode=one_of("training", "always"),
        axes=one_of("()", "[]"),
        cudnn_off=optional(flag),
    ),
    **_rows("Cast cast", 1, dtype=one_of("float16", "float32")),
    **_rows("Concat concat", 0, num_args=integer(1, MAX_INPUTS), dim=_axis),
    **_rows("ElementWiseSum add_n", 0, num_args=integer(1, MAX_INPUTS)),
    **_rows("slice_axis", 1, axis=_axis, begin=_index, end=_index),
    **_rows("tile", 1, reps=several(integer(1, _MAX_CHANNELS), *range(1, 7), is_bare_allowed=True)),
    **_rows("clip", 1, a_min=_number, a_max=_number),
    **_rows("hard_sigmoid", 1, alpha=_number, beta=_number),
    **_rows("_image_normalize", 1, mean=_per_channel, std=_per_channel),
    **_rows("max mean min sum", 1, axis=_axes, keepdims=flag, exclude=flag),
    **_rows(
        """
        BlockGrad Flatten _copy abs exp flatten identity log negative relu rsqrt sigmoid sqrt square
        tanh
        """,
        1,
    ),
    **_rows(
        """
        _DivScalar _MaximumScalar _MinimumScalar _MinusScalar _MulScalar _PlusScalar _PowerScalar
        _RDivScalar _RMinusScalar _div_scalar _maximum_scalar _minimum_scalar _minus_scalar
        _mul_scalar _plus_scalar _power_scalar _rdiv_scalar _rminus_scalar
        """,
        1,
        scalar=_number,
        is_int=flag,
    ),
    **_rows(
        """
        _Div _Maximum _Minimum _Minus _Mul _Plus _Power _div _maximum _minimum _minus _mul _plus
        _power broadcast_add broadcast_div broadcast_maximum broadcast_minimum broadcast_minus
        broadcast_mul broadcast_plus broadcast_power broadcast_sub elemwise_add elemwise_div
        elemwise_mul elemwise_sub
        """,
        2,
    ),
}
OPERATORS: Mapping[str, Operator] = {
    **_COMMON,
    **_rows("InstanceNorm", 3, eps=_epsilon),
    **_rows("LayerNorm", 3, **_NORMALIZATION, axis=_axis),
    **_rows("L2Normalization", 1, eps=_epsilon, mode=one_of("channel", "instance", "spatial")),
    # A Pad that reflects may read beyond its input.
    **_rows(
        "Pad pad",
        1,
        mode=one_of("constant", "edge"),
        pad_width=several(integer(0, _WINDOW_SIDE), 8, 10),
        constant_value=_number,
    ),
    **_rows(
        "Reshape reshape",
        1,
        shape=target_shape,
        **dict.fromkeys(("reverse", "keep_highest"), one_of("False")),
        target_shape=one_of("()", "(0, 0)", "(0,0)"),
    ),
    **_rows(
        "SliceChannel split", 1, num_outputs=_split_count, axis=integer(-1, 5), squeeze_axis=flag
    ),
    **_rows("SwapAxis swapaxes", 1, dim1=integer(0, 5), dim2=integer(0, 5)),
    **_rows(
        "_contrib_AdaptiveAvgPooling2D",
        1,
        output_size=several(integer(1, _WINDOW_SIDE), 0, 1, 2, is_bare_allowed=True),
    ),
    **_rows("slice", 1, begin=_indices, end=_indices, step=_steps),
    **_rows("transpose", 1, axes=several(integer(0, 5), *range(7))),
}
"""Pure functions of their inputs.

The layers and reshapes of the networks that InsightFace has published since 2017, and of this
toolkit's classifiers; reductions and functions of one tensor; and arithmetic, including the names
of earlier versions of MXNet.
"""
# A node's attributes, in the order in which later ones count.
_TABLES = ("param", "attr", "attrs")
# How to train a node or its parameters, with "__" around since MXNet 0.9.
_OF_TRAINING = re.compile(
    r"__.*|(?:.*_)?(?:ctx_group|lr_mult|wd_mult|force_mirroring|mirror_stage)"
)


def output_count(node: Node) -> int:
    """Return the number of outputs of a node."""
    if node.get("op") not in _SPLITS:
        return 1
    count: Any = ""
    # The one attribute alone, since each use of an output asks for it.
    for table in map(node.get, _TABLES):
        if isinstance(table, dict):
            count = table.get("num_outputs", count)
    checked = _split_count(count) if isinstance(count, str) else None
    if checked is not None:
        return int(checked)
    raise GraphError(f"{count!r:.80} is no number from 1 to {_MAX_SPLITS}")


def attributes(node: Node) -> dict[str, str]:
    """Return a node's attributes, which older versions of MXNet write in two places."""
    merged: dict[str, str] = {}
    for key in _TABLES:
        found = node.get(key, {})
        if not isinstance(found, dict):
            raise GraphError(f"the attributes of node {node.get('name')!r:.80} are no table")
        for name, value in found.items():
            if not (isinstance(value, str) and len(name) <= MAX_TEXT >= len(value)):
                raise GraphError(f"node {node.get('name')!r:.80} has an attribute that is no text")
            if not _OF_TRAINING.fullmatch(name):
                merged[name] = value
    return merged


def checked_attributes(node: Node) -> dict[str, str]:
    """Return an operator's attributes, each in its range and as MXNet writes it."""
    kinds, checked = OPERATORS[node["op"]].attributes, {}
    for key, value in attributes(node).items():
        if key not in kinds:
            raise GraphError(
                f"node {node['name']!r} has the attribute {key!r:.80}, which this reader does not "
                f"know of {node['op']}; if MXNet 1.9.1 has it, add it to OPERATORS in "
                "backbones/graph/operators.py"
            )
        rewritten = kinds[key](value.strip())
        if rewritten is None:
            raise GraphError(f"node {node['name']!r} has {key} = {value!r:.80}")
        checked[key] = rewritten
    return checked


def input_count(operator: str, attributes: Mapping[str, str]) -> int:
    """Return the number of inputs of an operator with these checked attributes."""
    count, kinds = OPERATORS[operator]
    if "num_args" in kinds:
        return int(attributes.get("num_args", "0"))
    if operator == "LeakyReLU":
        return 1 + (attributes.get("act_type") == "prelu")
    return count - (attributes.get("no_bias") == "True")


def is_common(node: Node) -> bool:
    """True if MXNet has run such operators in every test of this project, whatever their inputs.

    They are those of this project's networks, with windows of the usual sizes.
    """
    found = attributes(node)
    kernel, stride, dilate, pad = (
        [int(side) for side in re.findall(r"\d+", found.get(key, ""))]
        for key in ("kernel", "stride", "dilate", "pad")
    )
    return (
        node["op"] in _COMMON
        and max(kernel, default=1) <= 16
        and max(stride, default=1) <= 16
        and max(dilate, default=1) <= 1
        and all(2 * beyond <= side for beyond, side in zip(pad, kernel))
    )
