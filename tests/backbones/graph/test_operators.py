from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import backbones
from backbones import classifiers
from backbones.classifiers import Normalization
from backbones.graph import attribute_kinds as kinds
from backbones.graph import operators
from backbones.graph.nodes import to_json
from backbones.options import OUTPUTS
from runtime.mxnet import mx

PLAIN = Normalization((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def node(op: str, **found: str) -> dict[str, Any]:
    return {"op": op, "name": "n", "attrs": found, "inputs": []}


def test_operators_and_attributes_are_those_of_mxnet() -> None:
    assert operators.OPERATORS.keys() - {*mx.operator.get_all_registered_operators()} == {"null"}
    for op in operators.OPERATORS.keys() - {"null"}:
        known = {*mx.operator.get_operator_arguments(op).names}
        # MXNet does not name the number of arguments where there is nothing else.
        known |= {"num_args"} if known == {"args"} else set()
        assert operators.OPERATORS[op].attributes.keys() <= known, op


# Values that would be read as positions, sizes or divisors, or crash MXNet.
REFUSED = """
Convolution num_group 0; Convolution num_filter -1; Convolution kernel (3, 3, 3)
Convolution stride (0, 1); Convolution layout NHWC; Convolution workspace 99999999
FullyConnected num_hidden 1e9; BatchNorm eps nan; BatchNorm axis 7; BatchNorm output_mean_var True
LeakyReLU act_type none; Pooling pool_type lp; Pooling kernel (0, 0); Dropout axes (0, 99)
Dropout p -1; Concat dim -7; clip a_max inf; _mul_scalar scalar nan; mean axis (0, 99)
SliceChannel axis -6; SwapAxis dim1 -1; transpose axes (0, 9); Reshape shape (-5, -7)
Reshape reverse True; Pad pad_width (1, 1); Pad mode reflect
Pad pad_width (0, 0, 0, 0, 1025, 0, 1, 0); Pad pad_width (0, 0, 0, 0, -1, 0, 1, 0)
slice_axis axis 9; slice_axis begin x; tile reps (1, 0, 1, 1); tile reps (1, 1000000, 1, 1)
tile reps (1, 1, 1, 1, 1, 1, 1); _contrib_AdaptiveAvgPooling2D output_size 0
_contrib_AdaptiveAvgPooling2D output_size (1, 1025); slice begin (None, 1e9, 1, 1)
slice end (12345678, 1, 1, 1); slice step (1, 1, 0, 1); Cast dtype float64
_image_normalize mean (1.0, 2.0); _image_normalize mean (); _image_normalize std (1e9999,)
"""


@pytest.mark.parametrize("text", re.split("[;\n] ?", REFUSED.strip()))
def test_values_out_of_range_are_refused(text: str) -> None:
    op, key, value = text.split(maxsplit=2)
    with pytest.raises(operators.DamagedGraph, match=f"has {key} = "):
        operators.checked_attributes(node(op, **{key: value}))


def graphs() -> Iterator[Any]:
    """A graph of each form."""
    for name in ("r18", "r18-se", "mbf"):
        yield backbones.build(name)
    for output in OUTPUTS:
        yield backbones.build("tiny", output=output)
    # Deeper ones have the same blocks.
    for name in (one for one in classifiers.names() if not re.search("101|1[56]|201", one)):
        yield classifiers.build(name, classes=10, normalization=PLAIN)


def test_networks_are_read_as_they_are_built() -> None:
    """Without a trial, and with the attributes that MXNet writes."""
    for graph in graphs():
        for one in to_json(graph)["nodes"]:
            if one["op"] != "null":
                assert operators.checked_attributes(one) == operators.attributes(one)
            assert operators.is_common(one), one
    unusual = {"kernel": "(17, 1)"}, {"kernel": "(3, 3)", "pad": "(2, 0)"}, {"dilate": "(2, 2)"}
    for found in (*unusual, {"stride": "(17, 1)"}):
        assert not operators.is_common(node("Convolution", **found))
    assert operators.is_common(node("Convolution", kernel="(3, 3)", pad="(1, 1)", stride="(16, 2)"))
    unknown = "'kernel', which this reader does not know of Flat"
    with pytest.raises(operators.UnsupportedGraph, match=unknown):
        operators.checked_attributes(node("Flatten", kernel="(3, 3)"))
    # Of training, as MXNet has written them in all its versions.
    found = {"lr_mult": "x", "w_wd_mult": "2", "__ctx_group__": "a", "num_hidden": "4"}
    assert operators.attributes(node("FullyConnected", **found)) == {"num_hidden": "4"}


@pytest.mark.parametrize(("kind", "accepted", "refused"), [
    (kinds.one_of("relu", "tanh"), {"tanh": "tanh"}, ["Tanh"]),
    (kinds.flag, {"true": "True", "0": "False"}, ["2", "None"]),
    (kinds.optional(kinds.flag), {"None": "None", "1": "True"}, ["2"]),
    # MXNet makes 4294967295 of -1.
    (kinds.integer(1, 7), {"7": "7", "3L": "3"}, ["8", "0", "-1", "1.0", "0x1", "١"]),
    (kinds.integer(0, 7), {"-0": "0"}, ["-1", "8"]),
    # Python reads no number with leading zeros.
    (kinds.real(0, 9), {"2e-05": "2e-05", "1.": "1.", "007": "7", "00": "0"}, ["9.5", "nan"]),
    (kinds.real(-9, 9), {"-00.50": "-0.50"}, ["-9.5"]),
    (kinds.real(-1e300, 1e300), {"1": "1"}, ["inf", "1e999", "1_0"]),
    (
        kinds.several(kinds.integer(1, 1024), 0, 2),
        {"[3L, 3L]": "(3, 3)", "(3,5)": "(3, 5)", "()": "()"},
        ["(3,)", "(3, 3, 3)", "(3, )3", "(,)", "(0, 3)", "3"],
    ),
    (kinds.several(kinds.integer(1, 9), 1, is_bare_allowed=True), {"3": "3"}, ["0"]),
    (kinds.several(kinds.integer(1, 9), 1), {"[3]": "(3,)"}, ["3"]),
    (
        kinds.target_shape,
        {"(0, -1)": "(0, -1)", "(0, -4, 2, -1, -2)": "(0, -4, 2, -1, -2)", "(8, 6)": "(8, 6)"},
        [
            # MXNet divides by the other factor.
            *("(-4, 0, -1)", "(0, -4, -1, 0)", "(-4, -1, -1)", "(-4, -2, 3)", "(-4, 2)"),
            # It writes the size of -1 beyond the end of the shape.
            *("(-4, 1, 2, -4, 1, 2, -1)", "(-2, -1)", "(-1, -1)"),
            # It takes any other negative number for a size.
            *("(-5, 7)", "(-2147483648,)", "()", "-1", "(0, 0, 0, 0, 0, 0, 0, 0, 0)"),
            "(1048577,)",
        ],
    ),
])
def test_values_are_as_mxnet_writes_them(kind, accepted, refused) -> None:
    assert {value: kind(value) for value in accepted} == accepted
    assert {value: kind(value) for value in refused} == dict.fromkeys(refused)
