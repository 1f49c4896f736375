"""The operators and attributes that a graph from a file may have.

Some operators of MXNet call back through an address that an attribute holds, and some divide by an
attribute, read at a position that it gives, or allocate as much memory as it says. So a graph from
a file may only have operators of a list, with attributes in a range.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from backbones.graph.nodes import Node

MAX_TEXT = 256
MAX_INPUTS = 64
_MAX_SPLITS = 64

OPERATORS = frozenset(
    """
    Activation BatchNorm BlockGrad Cast Concat Convolution Dropout ElementWiseSum Flatten
    FullyConnected InstanceNorm L2Normalization LayerNorm LeakyReLU Pad Pooling Reshape SliceChannel
    SwapAxis _contrib_AdaptiveAvgPooling2D _copy _image_normalize add_n cast clip concat flatten
    hard_sigmoid identity null pad relu reshape sigmoid slice slice_axis split swapaxes tanh tile
    transpose

    abs exp log max mean min negative rsqrt sqrt square sum

    _Div _DivScalar _Maximum _MaximumScalar _Minimum _MinimumScalar _Minus _MinusScalar _Mul
    _MulScalar _Plus _PlusScalar _Power _PowerScalar _RDivScalar _RMinusScalar _div _div_scalar
    _maximum _maximum_scalar _minimum _minimum_scalar _minus _minus_scalar _mul _mul_scalar _plus
    _plus_scalar _power _power_scalar _rdiv_scalar _rminus_scalar broadcast_add broadcast_div
    broadcast_maximum broadcast_minimum broadcast_minus broadcast_mul broadcast_plus broadcast_power
    broadcast_sub elemwise_add elemwise_div elemwise_mul elemwise_sub
    """.split()
)
"""Pure functions of their inputs.

The layers and reshapes of the networks that InsightFace has published since 2017, and of this
toolkit's classifiers; reductions and functions of one tensor; and arithmetic, including the names
of earlier versions of MXNet.
"""
RESHAPES = ("Reshape", "reshape")
LAYERS = frozenset("BatchNorm Convolution FullyConnected InstanceNorm LayerNorm LeakyReLU".split())
"""Their inputs after the first are parameters, whose shapes MXNet does not check."""
_SPLITS = ("SliceChannel", "split")


class DamagedGraph(Exception):
    """The file is damaged; the message says where."""


def output_count(node: Node) -> int:
    """Return the number of outputs of a node."""
    if node.get("op") not in _SPLITS:
        return 1
    count = attributes(node).get("num_outputs", "")
    if count.isdecimal() and len(count) < 10 and 1 <= int(count) <= _MAX_SPLITS:
        return int(count)
    raise DamagedGraph(f"{count!r:.80} is no number from 1 to {_MAX_SPLITS}")


def attributes(node: Node) -> dict[str, str]:
    """Return a node's attributes, which older versions of MXNet write in two places."""
    merged: dict[str, str] = {}
    for key in ("param", "attr", "attrs"):
        found = node.get(key, {})
        if not isinstance(found, dict):
            raise DamagedGraph(f"the attributes of node {node.get('name')!r:.80} are no table")
        for name, value in found.items():
            if not (isinstance(value, str) and len(name) <= MAX_TEXT >= len(value)):
                raise DamagedGraph(
                    f"node {node.get('name')!r:.80} has an attribute that is no text"
                )
            if not name.startswith("__"):
                merged[name] = value
    return merged


def checked_attributes(node: Node) -> dict[str, str]:
    """Return an operator's attributes, of which each is in its range."""
    found = attributes(node)
    for key, value in found.items():
        is_allowed = _ATTRIBUTES.get(key)
        if is_allowed is not None and not is_allowed(value):
            raise DamagedGraph(f"node {node['name']!r} has {key} = {value!r:.80}")
    return found


def _numbers(least: int, most: int, count: int = 3) -> Callable[[str], bool]:
    """Return a test for a number, or a tuple or list of up to ``count``, within bounds."""
    number = r"\d{1,7}L?"
    # As in 3, (3, 3) or, from Python 2, [3L, 3L]; an empty tuple stands for MXNet's default.
    form = re.compile(
        rf"{number}|[(\[] *(?:{number}(?:, *{number}){{0,{count - 1}}},? *)?[)\]]", re.ASCII
    )

    def is_allowed(value: str) -> bool:
        found = re.findall(r"\d+", value)
        return bool(form.fullmatch(value)) and all(least <= int(x) <= most for x in found)

    return is_allowed


# Indices into a tensor of at most six dimensions; None stands for an end.
_INDEX = r"(?:None|-?\d{1,7}L?)"
_indices = re.compile(
    rf"{_INDEX}|[(\[] *(?:{_INDEX}(?:, *{_INDEX}){{0,5}},? *)?[)\]]", re.ASCII
).fullmatch


def _steps(value: str) -> bool:
    """Whether no step is 0, by which MXNet divides."""
    return bool(_indices(value)) and all(map(int, re.findall(r"\d+", value)))


# One number, or one for each of three channels.
_REAL = r"-?\d{1,20}(?:\.\d{0,30})?(?:e-?\d{1,3})?"
_per_channel = re.compile(
    rf"{_REAL}|[(\[] *{_REAL}(?:(?:, *{_REAL}){{2}})?,? *[)\]]", re.ASCII
).fullmatch

_ATTRIBUTES: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(("kernel", "stride", "dilate"), _numbers(1, 1024)),
    "pad": _numbers(0, 1024),
    "pad_width": _numbers(0, 1024, 10),
    # Of Pad, Dropout and L2Normalization. A Pad that reflects may read beyond its input.
    "mode": frozenset(
        "constant edge training always instance channel spatial".split()
    ).__contains__,
    "output_size": _numbers(1, 1024, 2),
    "reps": _numbers(1, 1 << 17, 6),
    "dtype": frozenset(("float16", "float32")).__contains__,
    "begin": _indices,
    "end": _indices,
    **dict.fromkeys(("mean", "std"), _per_channel),
    "step": _steps,
    **dict.fromkeys(("num_filter", "num_hidden", "num_group"), _numbers(1, 1 << 17)),
    "num_args": _numbers(1, MAX_INPUTS),
    "num_outputs": _numbers(1, _MAX_SPLITS),
}
"""Tests of the attributes by which MXNet divides, at which it reads, or whose size it allocates."""
