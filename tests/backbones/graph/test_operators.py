"""The table of operators against MXNet, and what it keeps from MXNet."""

from __future__ import annotations

from typing import Any

import pytest

import backbones
from backbones import classifiers
from backbones.classifiers import Normalization
from backbones.graph.nodes import to_json
from backbones.graph.operators import (
    OPERATORS,
    DamagedGraph,
    UnsupportedGraph,
    attributes,
    checked_attributes,
    input_count,
    is_common,
)
from backbones.maps import OUTPUTS
from runtime.mxnet import mx

PLAIN = Normalization((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def node(op: str, **found: str) -> dict[str, Any]:
    return {"op": op, "name": "n", "attrs": found, "inputs": []}


@pytest.mark.parametrize("op", sorted(OPERATORS.keys() - {"null"}))
def test_attributes_are_those_of_mxnet(op: str) -> None:
    known = {*mx.operator.get_operator_arguments(op).names}
    # MXNet does not name the number of arguments where there is nothing else.
    known |= {"num_args"} if known == {"args"} else set()
    assert OPERATORS[op].attributes.keys() <= known


@pytest.mark.parametrize(
    ("op", "key", "value"),
    [
        ("Convolution", "num_group", "0"),
        ("Convolution", "num_filter", "-1"),
        ("Convolution", "kernel", "(3, 3, 3)"),
        ("Convolution", "stride", "(0, 1)"),
        ("Convolution", "layout", "NHWC"),
        ("Convolution", "workspace", "99999999"),
        ("FullyConnected", "num_hidden", "1e9"),
        ("BatchNorm", "eps", "nan"),
        ("BatchNorm", "axis", "7"),
        ("BatchNorm", "output_mean_var", "True"),
        ("LeakyReLU", "act_type", "none"),
        ("Pooling", "pool_type", "lp"),
        ("Pooling", "kernel", "(0, 0)"),
        ("Dropout", "axes", "(0, 99)"),
        ("Dropout", "p", "-1"),
        ("Concat", "dim", "-7"),
        ("clip", "a_max", "inf"),
        ("_mul_scalar", "scalar", "nan"),
        ("mean", "axis", "(0, 99)"),
        ("SliceChannel", "axis", "-6"),
        ("SwapAxis", "dim1", "-1"),
        ("transpose", "axes", "(0, 9)"),
        ("Reshape", "shape", "(-5, -7)"),
        ("Reshape", "reverse", "True"),
        ("Pad", "pad_width", "(1, 1)"),
        ("slice_axis", "axis", "9"),
    ],
)
def test_values_out_of_range_are_refused(op: str, key: str, value: str) -> None:
    with pytest.raises(DamagedGraph, match=f"has {key} = "):
        checked_attributes(node(op, **{key: value}))


def test_an_attribute_that_an_operator_does_not_have_is_refused() -> None:
    with pytest.raises(UnsupportedGraph, match="'kernel', which this reader does not know of Flat"):
        checked_attributes(node("Flatten", kernel="(3, 3)"))


def test_attributes_of_training_are_left_out() -> None:
    """As MXNet has written them in all its versions."""
    found = {"lr_mult": "x", "w_wd_mult": "2", "__ctx_group__": "a", "num_hidden": "4"}
    assert attributes(node("FullyConnected", **found)) == {"num_hidden": "4"}


@pytest.mark.parametrize(
    ("op", "found", "expected"),
    [
        ("Convolution", {}, 3),
        ("Convolution", {"no_bias": "True"}, 2),
        ("LeakyReLU", {"act_type": "leaky"}, 1),
        ("LeakyReLU", {"act_type": "prelu"}, 2),
        ("Concat", {"num_args": "5"}, 5),
        ("Concat", {}, 0),
        ("elemwise_add", {}, 2),
        ("BatchNorm", {}, 5),
        ("null", {}, 0),
    ],
)
def test_numbers_of_inputs(op: str, found: dict[str, str], expected: int) -> None:
    assert input_count(op, found) == expected


GRAPHS = {
    **{name: lambda name=name: backbones.build(name) for name in ("r18", "r18-se", "mbf", "tiny")},
    **{f"tiny {one}": lambda one=one: backbones.build("tiny", output=one) for one in OUTPUTS},
    **{
        name: lambda name=name: classifiers.build(name, classes=10, normalization=PLAIN)
        for name in classifiers.names()
    },
}


@pytest.mark.parametrize("name", GRAPHS)
def test_networks_are_read_as_they_are_built(name: str) -> None:
    """Without a trial, and with the attributes that MXNet writes."""
    for one in to_json(GRAPHS[name]())["nodes"]:
        assert one["op"] == "null" or checked_attributes(one) == attributes(one)
        assert is_common(one), one


@pytest.mark.parametrize(
    "found",
    [{"kernel": "(17, 1)"}, {"kernel": "(3, 3)", "pad": "(2, 0)"}, {"dilate": "(2, 2)"}],
)
def test_unusual_windows_are_tried_out(found: dict[str, str]) -> None:
    assert not is_common(node("Convolution", **found))
    assert is_common(node("Convolution", kernel="(3, 3)", pad="(1, 1)", stride="(2, 2)"))
