"""The operators and attributes that a graph from a file may have.

Some operators of MXNet call back through an address that an attribute holds, and some divide by an
attribute, read at a position that it gives, or allocate as much memory as it says. So a graph from
a file may only have the operators of a table, with attributes of another one, every value of the
type and in the range of the table. MXNet itself refuses an attribute that its operator lacks.

Values are rewritten in the form in which MXNet writes them: older versions and other programs write
``[3L, 3L]`` or ``1`` where this project looks for ``(3, 3)`` or ``True``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Optional

from backbones.graph.nodes import Node

MAX_TEXT = 256
MAX_INPUTS = 64
LAYERS = frozenset("BatchNorm Convolution FullyConnected InstanceNorm LayerNorm LeakyReLU".split())
"""Their inputs after the first are parameters, whose shapes MXNet does not check."""


class GraphError(Exception):
    """The file is damaged, or this reader does not support it; the message says where."""


Kind = Callable[[str], Optional[str]]
"""Return the value of an attribute as MXNet writes it; None if it is not allowed."""


def one_of(*words: str) -> Kind:
    """Allow these words."""
    return {word: word for word in words}.get


def flag(value: str) -> Optional[str]:
    """Allow a truth value, which older versions write as a digit."""
    return {"true": "True", "1": "True", "false": "False", "0": "False"}.get(value.lower())


def integer(least: int, most: int) -> Kind:
    """Allow a whole number within bounds; Python 2 has written some with an L."""

    def checked(value: str) -> Optional[str]:
        found = re.fullmatch(r"(-?\d{1,9})L?", value, re.ASCII)
        return str(int(found[1])) if found and least <= int(found[1]) <= most else None

    return checked


def real(least: float, most: float) -> Kind:
    """Allow a finite number within bounds; leading zeros, which Python refuses, are removed."""
    form = re.compile(r"[-+]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][-+]?\d{1,3})?", re.ASCII)

    def checked(value: str) -> Optional[str]:
        if not form.fullmatch(value) or not least <= float(value) <= most:
            return None
        return re.sub(r"^([-+]?)0+(?=\d)", r"\1", value)

    return checked


def optional(kind: Kind) -> Kind:
    """Allow None as well."""
    return lambda value: value if value == "None" else kind(value)


def several(kind: Kind, *counts: int, is_bare_allowed: bool = False) -> Kind:
    """Allow a tuple or list whose length is one of ``counts``, or a bare value."""

    def checked(value: str) -> Optional[str]:
        if value[:1] + value[-1:] not in ("()", "[]"):
            return kind(value) if is_bare_allowed else None
        inner = value[1:-1].strip()
        parts = [kind(part.strip()) for part in re.sub(r", *$", "", inner).split(",") if inner]
        if len(parts) not in counts or None in parts:
            return None
        return f"({', '.join(map(str, parts))}{',' if len(parts) == 1 else ''})"

    return checked


# Sizes, -3 (the product of two) and 0 (as it was); then one that follows from the others; behind it
# also -2 (all that are left) and -4, which splits a size. MXNet divides by what -4 splits into, and
# puts the size of -1 at a wrong place after a code that stands for more or fewer sizes than one.
_PLAIN, _SPLIT = r"(?:\d+|-3)", r"-4, (?:-1, [1-9]\d*|[1-9]\d*, (?:-1|[1-9]\d*))"
_TARGET_SHAPE = re.compile(rf"\((?:{_PLAIN}, )*(?:-1, )?(?:(?:{_PLAIN}|-2|{_SPLIT}), )*")


def target_shape(value: str) -> Optional[str]:
    """Allow the shape of a Reshape: sizes, and MXNet's codes 0 to -4."""
    text = several(integer(-4, 1 << 20), *range(1, 9))(value)
    return text if text and _TARGET_SHAPE.fullmatch(f"{text.rstrip(',)')}, ") else None


def _same(names: str, kind: Kind) -> dict[str, Kind]:
    return dict.fromkeys(names.split(), kind)


_WINDOW_SIDE, _MAX_CHANNELS = 1024, 1 << 17
_size = integer(1, _MAX_CHANNELS)
_axis = integer(-2, 5)
_number = real(-3e38, 3e38)
# Indices into a tensor of at most six dimensions; None stands for an end.
_index = optional(integer(-9_999_999, 9_999_999))
_ATTRIBUTES: Mapping[str, Kind] = {
    **_same("no_bias flatten fix_gamma use_global_stats global_pool keepdims exclude", flag),
    **_same("is_int squeeze_axis", flag),
    **_same("cudnn_off count_include_pad", optional(flag)),
    # More outputs than one; and forms of a Reshape.
    **_same("output_mean_var reverse keep_highest", one_of("False")),
    "target_shape": one_of("()", "(0, 0)", "(0,0)"),
    # Quantized networks have the first two; pooling by powers, which is refused, the third.
    **_same("min_calib_range max_calib_range p_value", one_of("None")),
    **_same("kernel stride dilate", several(integer(1, _WINDOW_SIDE), 0, 2)),
    "pad": several(integer(0, _WINDOW_SIDE), 0, 2),
    "pad_width": several(integer(0, _WINDOW_SIDE), 8, 10),
    "output_size": several(integer(1, _WINDOW_SIDE), 0, 1, 2, is_bare_allowed=True),
    **_same("num_filter num_group num_hidden", _size),
    "reps": several(_size, *range(1, 7), is_bare_allowed=True),
    **_same("num_args num_outputs", integer(1, MAX_INPUTS)),
    "workspace": integer(0, 1 << 16),
    "dim": _axis,
    "axis": optional(several(_axis, *range(6), is_bare_allowed=True)),
    **_same("dim1 dim2", integer(0, 5)),
    "axes": several(integer(0, 5), *range(7)),
    **_same("begin end", several(_index, *range(1, 7), is_bare_allowed=True)),
    "step": several(_index, *range(7)),
    "shape": target_shape,
    **_same("eps momentum p", real(0, 1)),
    **_same("slope lower_bound upper_bound", real(-1e6, 1e6)),
    **_same("scalar a_min a_max alpha beta constant_value", _number),
    # One number, or one for each of three channels.
    **_same("mean std", several(_number, 1, 3, is_bare_allowed=True)),
    "act_type": one_of(
        *"relu sigmoid softrelu softsign tanh elu gelu leaky prelu rrelu selu".split()
    ),
    "pool_type": one_of("avg", "max", "sum"),
    "pooling_convention": one_of("full", "valid"),
    # A Pad that reflects may read beyond its input.
    "mode": one_of(*"training always constant edge channel instance spatial".split()),
    "layout": one_of("None", "NCHW"),
    "cudnn_tune": one_of("None", "off", "limited_workspace", "fastest"),
    "dtype": one_of("float16", "float32"),
}
_OF_OPERATORS: Mapping[tuple[str, str], Kind] = {
    ("BatchNorm", "axis"): integer(-1, 3),
    **dict.fromkeys((("SliceChannel", "axis"), ("split", "axis")), integer(-1, 5)),
    # MXNet writes at these positions without a check.
    ("Dropout", "axes"): one_of("()", "[]"),
}


def _taking(inputs: int, names: str) -> dict[str, int]:
    return dict.fromkeys(names.split(), inputs)


# Operators of this project's networks: MXNet runs them without a trial, see ``is_common``.
_COMMON: Mapping[str, int] = {
    **_taking(0, "null Concat concat ElementWiseSum add_n"),
    **_taking(1, "Activation BlockGrad Cast cast Dropout Flatten flatten LeakyReLU Pooling"),
    **_taking(1, "_copy _image_normalize abs clip exp hard_sigmoid identity log negative relu"),
    **_taking(1, "max mean min rsqrt sigmoid slice_axis sqrt square sum tanh tile"),
    **_taking(1, "_DivScalar _MaximumScalar _MinimumScalar _MinusScalar _MulScalar _PlusScalar"),
    **_taking(1, "_PowerScalar _RDivScalar _RMinusScalar _div_scalar _maximum_scalar"),
    **_taking(1, "_minimum_scalar _minus_scalar _mul_scalar _plus_scalar _power_scalar"),
    **_taking(1, "_rdiv_scalar _rminus_scalar"),
    **_taking(2, "_Div _Maximum _Minimum _Minus _Mul _Plus _Power _div _maximum _minimum _minus"),
    **_taking(2, "_mul _plus _power broadcast_add broadcast_div broadcast_maximum"),
    **_taking(2, "broadcast_minimum broadcast_minus broadcast_mul broadcast_plus broadcast_power"),
    **_taking(2, "broadcast_sub elemwise_add elemwise_div elemwise_mul elemwise_sub"),
    **_taking(3, "Convolution FullyConnected"),
    **_taking(5, "BatchNorm"),
}
OPERATORS: Mapping[str, int] = {
    **_COMMON,
    **_taking(1, "L2Normalization Pad pad Reshape reshape SliceChannel split SwapAxis swapaxes"),
    **_taking(1, "_contrib_AdaptiveAvgPooling2D slice transpose"),
    **_taking(3, "InstanceNorm LayerNorm"),
}
"""The number of inputs: ``num_args`` if it is 0; layers without bias have one less.

They are pure functions of their inputs: the layers and reshapes of the networks that InsightFace
has published since 2017, and of this toolkit's classifiers; reductions and functions of one tensor;
and arithmetic, including the names of earlier versions of MXNet.
"""
# A node's attributes, in the order in which later ones count.
_TABLES = ("param", "attr", "attrs")
# How to train a node or its parameters, with "__" around since MXNet 0.9.
_OF_TRAINING = re.compile(
    r"__.*|(?:.*_)?(?:ctx_group|lr_mult|wd_mult|force_mirroring|mirror_stage)"
)


def kind_of(operator: str, attribute: str) -> Optional[Kind]:
    """Return the kind of an operator's attribute; None if it is in no table."""
    return _OF_OPERATORS.get((operator, attribute), _ATTRIBUTES.get(attribute))


def output_count(node: Node) -> int:
    """Return the number of outputs of a node with checked attributes."""
    if node["op"] not in ("SliceChannel", "split"):
        return 1
    return int(node["attrs"].get("num_outputs", "1"))


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
    checked = {}
    for key, value in attributes(node).items():
        kind = kind_of(node["op"], key)
        if kind is None:
            raise GraphError(
                f"node {node['name']!r} has the attribute {key!r:.80}, which this reader does not "
                f"know of {node['op']}; if MXNet 1.9.1 has it, add it to the table in "
                "backbones/graph/operators.py"
            )
        rewritten = kind(value.strip())
        if rewritten is None:
            raise GraphError(f"node {node['name']!r} has {key} = {value!r:.80}")
        checked[key] = rewritten
    return checked


def input_count(operator: str, attributes: Mapping[str, str]) -> int:
    """Return the number of inputs of an operator with these checked attributes."""
    if operator == "LeakyReLU":
        return 1 + (attributes.get("act_type") == "prelu")
    count = OPERATORS[operator] or int(attributes.get("num_args", "0"))
    return count - (operator in LAYERS and attributes.get("no_bias") == "True")


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
