"""Operators of graphs: those of our networks, and of small graphs like those that are published."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backbones
from backbones import classifiers
from backbones.classifiers import Normalization
from backbones.graph import operators
from backbones.graph.nodes import to_json
from backbones.graph.symbol_file import infer_shapes, read_graph
from backbones.model import Backbone
from backbones.options import OUTPUTS
from runtime.errors import DataError
from runtime.mxnet import mx
from tests.backbones.passes import DATA, act, conv, norm

PLAIN = Normalization((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def node(op: str, **found: str) -> dict[str, Any]:
    return {"op": op, "name": "n", "attrs": found, "inputs": []}


def test_operators_and_attributes_are_those_of_mxnet() -> None:
    assert operators.OPERATORS.keys() - {*mx.operator.get_all_registered_operators()} == {"null"}
    found = operators.OPERATORS.keys() - {"null"}
    names = {op: {*mx.operator.get_operator_arguments(op).names} for op in found}
    assert operators._ATTRIBUTES.keys() <= set().union(*names.values())
    assert all(key in names[op] for op, key in operators._OF_OPERATORS)


# Values that would be read as positions, sizes or divisors, or crash MXNet.
REFUSED = """
Convolution num_group 0; Convolution num_filter -1; Convolution kernel (3, 3, 3)
Convolution stride (0, 1); Convolution layout NHWC; Convolution workspace 99999999
BatchNorm momentum 1.1; Pad pad_width (0, 0, 0, 0, 1, 0, 1, 0, 0); BatchNorm axis 4
FullyConnected num_hidden 1e9; BatchNorm eps nan; BatchNorm output_mean_var True
LeakyReLU act_type none; Pooling pool_type lp; Pooling kernel (0, 0); Dropout axes (0, 1)
Dropout p -1; Concat dim -7; clip a_max inf; _mul_scalar scalar nan; mean axis (0, 99)
SliceChannel axis -6; SwapAxis dim1 -1; transpose axes (0, 9); Reshape shape (-5, -7)
transpose axes (0, 1, 2, 3, 4, 5, 0); Reshape reverse True; Pad pad_width (1, 1); Pad mode reflect
Pad pad_width (0, 0, 0, 0, 1025, 0, 1, 0); Pad pad_width (0, 0, 0, 0, -1, 0, 1, 0)
slice_axis axis 9; slice_axis begin x; tile reps (1, 0, 1, 1); tile reps (1, 1000000, 1, 1)
tile reps (1, 1, 1, 1, 1, 1, 1); _contrib_AdaptiveAvgPooling2D output_size 0
_contrib_AdaptiveAvgPooling2D output_size (1, 1025); slice begin (None, 1e9, 1, 1)
slice end (12345678, 1, 1, 1); Cast dtype float64
_image_normalize mean (1.0, 2.0); _image_normalize mean (); _image_normalize std (1e9999,)
"""


@pytest.mark.parametrize("text", re.split("[;\n] ?", REFUSED.strip()))
def test_values_out_of_range_are_refused(text: str) -> None:
    op, key, value = text.split(maxsplit=2)
    with pytest.raises(operators.GraphError, match=f"has {key} = "):
        operators.checked_attributes(node(op, **{key: value}))


def test_networks_are_read_as_they_are_built() -> None:
    # Deeper ones have the same blocks.
    small = [name for name in classifiers.names() if not re.search("101|1[56]|201", name)]
    for graph in (
        *map(backbones.build, ("r18", "r18-se", "mbf")),
        *(backbones.build("tiny", output=output) for output in OUTPUTS),
        *(classifiers.build(name, classes=10, normalization=PLAIN) for name in small),
    ):
        for one in to_json(graph)["nodes"]:
            if one["op"] != "null":
                assert operators.checked_attributes(one) == operators.attributes(one)
            assert operators.is_common(one), one
    unusual = {"kernel": "(17, 1)"}, {"kernel": "(3, 3)", "pad": "(2, 0)"}, {"dilate": "(2, 2)"}
    for found in (*unusual, {"stride": "(17, 1)"}):
        assert not operators.is_common(node("Convolution", **found))
    assert operators.is_common(node("Convolution", kernel="(3, 3)", pad="(1, 1)", stride="(16, 2)"))
    unknown = "'info', which this reader does not know of Flat"
    with pytest.raises(operators.GraphError, match=unknown):
        operators.checked_attributes(node("Flatten", info="1234"))
    # Of training, as MXNet has written them in all its versions.
    found = {"lr_mult": "x", "w_wd_mult": "2", "__ctx_group__": "a", "num_hidden": "4"}
    assert operators.attributes(node("FullyConnected", **found)) == {"num_hidden": "4"}


@pytest.mark.parametrize(("kind", "accepted", "refused"), [
    (operators.one_of("relu", "tanh"), {"tanh": "tanh"}, ["Tanh"]),
    (operators.flag, {"true": "True", "0": "False"}, ["2", "None"]),
    (operators.optional(operators.flag), {"None": "None", "1": "True"}, ["2"]),
    # MXNet makes 4294967295 of -1.
    (operators.integer(1, 7), {"7": "7", "3L": "3"}, ["8", "0", "-1", "1.0", "0x1", "١"]),
    (operators.integer(0, 7), {"-0": "0"}, ["-1", "8"]),
    # Python reads no number with leading zeros.
    (operators.real(0, 9), {"2e-05": "2e-05", "1.": "1.", "007": "7", "00": "0"}, ["9.5", "nan"]),
    (operators.real(-9, 9), {"-00.50": "-0.50"}, ["-9.5"]),
    (operators.real(-1e300, 1e300), {"1": "1"}, ["inf", "1e999", "1_0"]),
    (
        operators.several(operators.integer(1, 1024), 0, 2),
        {"[3L, 3L]": "(3, 3)", "(3,5)": "(3, 5)", "()": "()"},
        ["(3,)", "(3, 3, 3)", "(3, )3", "(,)", "(0, 3)", "3"],
    ),
    (
        operators.kind_of("_contrib_AdaptiveAvgPooling2D", "output_size"),
        {"7": "7", "(7,)": "(7,)", "(7, 6)": "(7, 6)"},
        ["(7, 6, 5)"],
    ),
    (
        operators.target_shape,
        {one: one for one in ("(0, -1)", "(0, -4, 2, -1, -2)", "(8, 6)", "(0, -3, -2)", "(-1,)")},
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


SIZE = (16, 12)
IMAGES = np.random.default_rng(7).integers(0, 256, (3, 3, *SIZE), dtype=np.uint8)
PIXELS = (DATA - 127.5) * 0.0078125


def convolved(x: Any, name: str) -> Any:
    maps = norm(conv(x, name, no_bias=True), f"{name}_bn", eps=2e-5)
    return act(maps, "prelu", f"{name}_relu")


CONV = convolved(PIXELS, "conv")


def embedded(x: Any) -> Any:
    linear = mx.sym.FullyConnected(x, num_hidden=4, name="pre_fc1")
    return norm(linear, "fc1", fix_gamma=True, eps=2e-5)


def with_norm_aware_pooling() -> Any:
    """The head GNAP: every position is scaled by the mean norm over its own."""
    x = norm(CONV, "bn6f", fix_gamma=True)
    norms = mx.sym.sqrt(mx.sym.sum(x * x, axis=1, keepdims=True))
    factors = mx.sym.broadcast_div(mx.sym.mean(norms), norms)
    scaled = x * mx.sym.tile(factors, reps=(1, 8, 1, 1))
    return embedded(mx.sym.Pooling(scaled, kernel=(7, 7), global_pool=True, pool_type="avg"))


def hard_swish(x: Any) -> Any:
    """As a Gluon block that is called twice writes it: with the same names each time."""
    with mx.name.Prefix("hard_swish_"):
        return x * mx.sym.clip(x + 3, 0, 6) / 6


def mobile_net_v3() -> Any:
    x = hard_swish(norm(CONV, "a"))
    weights = conv(mx.sym.contrib.AdaptiveAvgPooling2D(x, output_size=1), "se", side=1)
    weights = mx.sym.clip(weights + 3, 0, 6) / 6
    return embedded(hard_swish(norm(mx.sym.broadcast_mul(x, weights), "b")))


def dense() -> Any:
    """Maps beside each other, and a padded path of which a row and column are cut off again."""
    x = mx.sym.Concat(CONV, mx.sym.Dropout(convolved(CONV, "conv2"), p=0.4), dim=1)
    padded = mx.sym.pad(x, mode="constant", constant_value=0, pad_width=(0, 0, 0, 0, 1, 0, 1, 0))
    pooled = mx.sym.Pooling(padded, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg")
    cut = mx.sym.slice(pooled, begin=(None, None, 1, 1), end=(None, None, None, None))
    return embedded(mx.sym.Flatten(cut))


def shuffled() -> Any:
    """Channels exchanged between groups, halves taken apart, and a loss behind the embedding."""
    groups = mx.sym.Reshape(mx.sym.identity(CONV, name="id"), shape=(0, -4, 2, -1, -2))
    x = mx.sym.Reshape(mx.sym.SwapAxis(groups, dim1=1, dim2=2), shape=(0, -3, -2))
    first, second = mx.sym.split(x, num_outputs=2, axis=1)
    x = mx.sym.L2Normalization(first - second, mode="channel")
    x = mx.sym.InstanceNorm(mx.sym.slice_axis(x, axis=2, begin=1, end=None), name="instance")
    return mx.sym.LinearRegressionOutput(embedded(1.0 / (x + 9.0)), name="loss")


def write(folder: Path, symbol: Any) -> Path:
    prefix, rng = folder / "model", np.random.default_rng(3)
    symbol.save(f"{prefix}-symbol.json")
    network = symbol.get_internals()["fc1_output"]
    found, _, auxiliary = network.infer_shape(data=(1, 3, *SIZE))
    names = [f"arg:{name}" for name in network.list_arguments()]
    names += [f"aux:{name}" for name in network.list_auxiliary_states()]
    shapes = zip(names, found + auxiliary)
    arrays = {name: mx.nd.array(rng.uniform(0.1, 1.1, shape)) for name, shape in shapes}
    del arrays["arg:data"]
    mx.nd.save(f"{prefix}-0000.params", arrays)
    return prefix


@pytest.mark.parametrize("graph", [with_norm_aware_pooling, mobile_net_v3, dense, shuffled])
def test_a_form_gives_what_mxnet_gives_and_is_exported_again(tmp_path, graph, monkeypatch) -> None:
    prefix = write(tmp_path, graph())
    backbone = Backbone.load(prefix, image_size=SIZE)
    features = backbone.extract(IMAGES)
    assert features.shape == (3, 4) and np.ptp(features, axis=0).min() > 0
    output = mx.sym.load(f"{prefix}-symbol.json").get_internals()["fc1_output"]
    block = mx.gluon.SymbolBlock(output, mx.sym.var("data", dtype="float32"))
    block.load_parameters(f"{prefix}-0000.params", ignore_extra=True)
    expected = block(mx.nd.array(IMAGES, dtype="float32")).asnumpy()
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)
    backbone.export(tmp_path / "again")
    # The same graph has been tried out.
    monkeypatch.setattr("runtime.untrusted.child.ask", lambda *_: None)
    again = Backbone.load(tmp_path / "again", image_size=SIZE)
    again.parameters["conv_weight"].set_data(mx.nd.zeros(again.parameters["conv_weight"].shape))
    again.load_pretrained(prefix, 0)
    np.testing.assert_array_equal(again.extract(IMAGES), features)


def test_float16_runs_in_float32_and_names_of_earlier_versions_are_known(tmp_path) -> None:
    """MXNet cannot run float16 on a CPU; until 1.0 it called ``a / b`` and the like otherwise."""
    narrow = mx.sym.Cast(DATA, dtype="float16")
    half = embedded(mx.sym.identity(convolved((narrow - 127.5) * 0.0078125, "conv")))
    found, expected = (
        Backbone.load(write(tmp_path, graph), image_size=SIZE).extract(IMAGES)
        for graph in (half, embedded(CONV))
    )
    np.testing.assert_array_equal(found, expected)
    path = write(tmp_path, with_norm_aware_pooling()).with_name("model-symbol.json")
    shapes = infer_shapes(read_graph(path), SIZE, path)
    graph = json.loads(path.read_text())
    older = {"elemwise_mul": "_Mul", "_minus_scalar": "_MinusScalar", "_mul_scalar": "_MulScalar"}
    for node in graph["nodes"]:
        node["op"] = older.get(node["op"], node["op"])
        node["attr"] = node.pop("attrs", {})
    path.write_text(json.dumps(graph))
    assert infer_shapes(read_graph(path), SIZE, path) == shapes
    larger = mx.sym.UpSampling(PIXELS, scale=2, sample_type="nearest", name="u")
    for symbol, message in (
        (embedded(larger), "'u' is of the operator 'UpSampling', which"),
        (mx.sym.Dropout(PIXELS, name="d"), "no path from 'data' to 'fc1_output'"),
    ):
        symbol.save(str(path))
        with pytest.raises(DataError, match=message) as caught:
            read_graph(path)
        assert str(path) in str(caught.value)
