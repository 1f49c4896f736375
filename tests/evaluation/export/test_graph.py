"""Every operator and every network computes in ONNX Runtime what it computes in MXNet."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backbones
from backbones import classifiers
from backbones.checkpoint import Checkpoint, read_checkpoint
from backbones.classifiers import Normalization
from backbones.graph.operators import OPERATORS
from evaluation.export.__main__ import draw_images, relative_difference
from evaluation.export.graph import IR_VERSION, OPSET, TRANSLATED, Form
from evaluation.network import OnnxNetwork
from runtime.mxnet import mx
from runtime.untrusted.onnx_model import import_onnx
from tests.evaluation.export.onnx_networks import by_mxnet, calibrated, drawn, exported
from tests.support.sets import assert_refused

SIZE = (9, 7)
FOURTEEN = [
    *("VGG16", "ResNet18", "ResNet50", "ResNet101", "RegNetX_200MF", "RegNetY_400MF", "DLA"),
    *("MobileNetV2", "ResNeXt29_32x4d", "ResNeXt29_2x64d", "SimpleDLA", "DenseNet121", "DPN92"),
    "PreActResNet18",
]
SINGLE, HALF = Form(), Form("float16")
sym = mx.sym


def operator(name: str) -> Any:
    """An operator of MXNet by any of its names, which are in two places."""
    return getattr(sym, name, None) or getattr(sym._internal, name)


def maps() -> Any:
    """Feature maps [b, 4, 7, 5], some positive and some negative, of a convolution."""
    x = (sym.var("data") - 127.5) * 0.0078125
    return sym.Convolution(x, num_filter=4, kernel=(3, 3), name="maps")


def embedded(x: Any) -> Any:
    return sym.FullyConnected(sym.identity(x, name="last"), num_hidden=3, name="fc1")


def of(kind: Any, *inputs: Callable[[Any], Any], **attributes: Any) -> Callable[[Any], Any]:
    """An operator of the maps, or of what is made of them."""
    return lambda x: kind(*([one(x) for one in inputs] or [x]), **attributes)


def positive(x: Any) -> Any:
    return sym.abs(x) + 0.5


PADDED: dict[str, Any] = {"kernel": (4, 3), "stride": (3, 3), "pad": (1, 0)}
WINDOWS: dict[str, dict[str, Any]] = {
    "": {"kernel": (3, 2), "stride": (2, 2)},
    **{name: {**PADDED, "pooling_convention": name} for name in ("valid", "full")},
    "global": {"kernel": (7, 7), "global_pool": True},
}
BAR: dict[str, Any] = {"kernel": (3, 1), "stride": (2, 1), "pad": (1, 0)}
PAD = {"pad_width": (0, 0, 0, 0, 1, 0, 2, 1)}
ACTIVATIONS = ("relu", "sigmoid", "softrelu", "softsign", "tanh")
FUNCTIONS = ("abs", "exp", "log", "negative", "rsqrt", "sqrt", "square", "tanh")
CASES: dict[str, Callable[[Any], Any]] = {
    **{kind: of(sym.Activation, act_type=kind) for kind in ACTIVATIONS},
    "leaky": of(sym.LeakyReLU, act_type="leaky", slope=0.1),
    "elu": of(sym.LeakyReLU, act_type="elu", slope=0.7),
    **{kind: of(sym.LeakyReLU, act_type=kind) for kind in ("selu", "gelu", "prelu")},
    "rrelu": lambda x: sym.LeakyReLU(x, act_type="rrelu")[0],
    "prelu of one slope": lambda x: sym.LeakyReLU(x, sym.var("one_gamma", shape=(1,)), "prelu"),
    "prelu of vectors": of(sym.LeakyReLU, sym.Flatten, act_type="prelu"),
    "hard sigmoid": of(sym.hard_sigmoid, alpha=0.3, beta=0.4),
    "fixed gamma": of(sym.BatchNorm, name="norm"),
    "gamma": of(sym.BatchNorm, fix_gamma=False, eps=2e-5, name="norm"),
    "norm of vectors": of(sym.BatchNorm, sym.Flatten, fix_gamma=False, name="norm"),
    "instance norm": of(sym.InstanceNorm, eps=1e-2, name="norm"),
    "layer norm": of(sym.LayerNorm, name="norm"),
    "layer norm of channels": of(sym.LayerNorm, axis=1, eps=1e-2, name="norm"),
    "groups": of(sym.Convolution, num_filter=8, num_group=2, **BAR),
    "dilation": of(sym.Convolution, num_filter=2, kernel=(2, 3), dilate=(3, 2), no_bias=True),
    "rows": of(sym.FullyConnected, num_hidden=6, flatten=False),
    "rows without bias": of(sym.FullyConnected, num_hidden=6, flatten=False, no_bias=True),
    "no gradient": sym.BlockGrad,
    "cast": of(sym.Cast, dtype="float32"),
    "dropout": of(sym.Dropout, p=0.5),
    "sum of none": of(sym.sum, axis=2),
    "mean but of": of(sym.mean, axis=(0, 1), exclude=True),
    "mean of all": lambda x: sym.broadcast_div(x, sym.mean(positive(x))),
    "largest of all": lambda x: sym.broadcast_div(x, sym.max(positive(x), keepdims=True)),
    "clip": of(sym.clip, a_min=-0.1, a_max=0.2),
    "two maps": of(sym.Concat, sym.identity, sym.square, sym.identity, dim=1),
    "rows beside each other": of(sym.concat, sym.identity, sym.square, dim=-2),
    "sum of three": of(sym.add_n, sym.identity, sym.square, sym.identity),
    "reshape": of(sym.Reshape, shape=(-1, 2, 70)),
    "reshape with codes": lambda x: sym.Reshape(
        sym.SwapAxis(sym.Reshape(x, shape=(0, -4, 2, -1, -2)), dim1=1, dim2=2), shape=(0, -3, -2)
    ),
    "transpose": of(sym.transpose, axes=(0, 2, 3, 1)),
    "transpose twice": of(sym.transpose, sym.transpose),
    "swap": of(sym.swapaxes, dim1=1, dim2=3),
    "slice": of(sym.slice, begin=(None, 1, -3), end=(None, None, None)),
    "slice with steps": of(
        sym.slice, begin=(None,) * 3 + (4,), end=(None,) * 3 + (0,), step=(1, 2, -2, -1)
    ),
    "slice of an axis": of(sym.slice_axis, axis=-1, begin=1, end=-1),
    "slice to an end": of(sym.slice_axis, axis=2, begin=-4, end=None),
    "split": lambda x: operator("split")(x, num_outputs=2, axis=1)[1],
    "split and squeezed": lambda x: sym.split(x, num_outputs=5, axis=3, squeeze_axis=True)[2],
    "tile": of(sym.tile, reps=(1, 2, 1, 3)),
    "tile of the last": of(sym.tile, reps=(2,)),
    "tile with more axes": lambda x: sym.Reshape(
        sym.tile(sym.Flatten(x), reps=(1, 1, 2)), shape=(-3, 0)
    ),
    "pad": of(sym.pad, mode="constant", constant_value=0.5, **PAD),
    "pad with the edge": of(sym.pad, mode="edge", **PAD),
    **{name: of(operator(name), positive) for name in FUNCTIONS},
    **{f"function {name}": operator(name) for name in ("relu", "sigmoid")},
}
for mode in ("instance", "channel", "spatial"):
    CASES[f"l2 {mode}"] = of(sym.L2Normalization, mode=mode, eps=1e-3)
for kind, name in product(("max", "avg", "sum"), WINDOWS):
    CASES[f"{kind} pooling {name}"] = of(sym.Pooling, pool_type=kind, **WINDOWS[name])
for name in ("valid", "full"):
    inside = {"pool_type": "avg", "count_include_pad": False, **WINDOWS[name]}
    CASES[f"mean without padding, {name}"] = of(sym.Pooling, **inside)
for size in (1, (3, 2), 3):
    CASES[f"adaptive pooling to {size}"] = of(sym.contrib.AdaptiveAvgPooling2D, output_size=size)
for name, axis in product(("max", "mean", "min", "sum"), (1, (2, 3), (-1, 1))):
    reduced = of(operator(name), axis=axis, keepdims=True)
    CASES[f"{name} of {axis}"] = of(sym.broadcast_mul, sym.identity, reduced)
ARITHMETIC = "(plus|add|minus|sub|mul|div|power|maximum|minimum)"
for name in OPERATORS:
    if re.fullmatch(f"(_|broadcast_|elemwise_){ARITHMETIC}", name, re.IGNORECASE):
        CASES[name] = of(operator(name), positive, lambda x: positive(x * x))
    if re.fullmatch(f"_r?{ARITHMETIC}_?scalar", name, re.IGNORECASE):
        CASES[name] = of(operator(name), positive, scalar=0.75)


def assert_equal(found: Checkpoint, limit: float, form=SINGLE, images=None, batch=3) -> None:
    model = OnnxNetwork(exported(found, form).SerializeToString())
    images = draw_images(3, found.image_shape) if images is None else images
    for part in (*np.split(images, len(images)), *np.split(images, len(images) // batch)):
        assert relative_difference(by_mxnet(found, part), model.extract(part)) <= limit


def embedding(build: Callable[[Any], Any]) -> Checkpoint:
    return drawn(embedded(build(maps())), (3, *SIZE))


@pytest.mark.parametrize("case", sorted(CASES))
def test_an_operator_gives_what_mxnet_gives(case: str) -> None:
    found = embedding(CASES[case])
    assert np.ptp(by_mxnet(found, draw_images(5, found.image_shape)), axis=0).min() > 0
    assert_equal(found, 1e-5)
    assert_equal(found, 2e-2, HALF)


def test_every_operator_of_a_checkpoint_is_translated_and_in_a_case() -> None:
    """MXNet writes the first name of each operator, whatever a file calls it."""
    graphs = [embedding(build).graph for build in CASES.values()]
    assert {node["op"] for graph in graphs for node in graph["nodes"]} | {
        "null",
        "_image_normalize",
    } == TRANSLATED
    others = {
        *("ElementWiseSum", "cast", "concat", "flatten", "identity", "pad", "reshape", "split"),
        *("swapaxes", *(OPERATORS.keys() & CASES.keys())),
    }
    assert not OPERATORS.keys() - TRANSLATED - others


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "output"),
    [
        *(("tiny", output) for output in ("E", "F", "FC", "GAP", "GDC", "GNAP", "J")),
        *(("mbf", "GDC"), ("mbf", "GNAP"), ("r18-se", "FC")),
    ],
)
def test_a_backbone_with_every_output(name: str, output: str) -> None:
    side = 32 if name == "r18-se" else 112
    found = drawn(backbones.build(name, output=output), (3, side, side))
    assert_equal(found, 1e-4)
    assert_equal(found, 3e-2, HALF)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("LeNet", (1, 28, 28)),
        ("mobilenet0.25", (3, 224, 224)), ("squeezenet1.1", (3, 224, 224)),
        *(pytest.param(name, (3, 32, 32), marks=pytest.mark.models) for name in FOURTEEN),
    ],
)  # fmt: skip
def test_a_classifier(name: str, shape: tuple[int, int, int]) -> None:
    per_channel = Normalization((0.5, 0.4, 0.3)[: shape[0]], (0.2, 0.21, 0.22)[: shape[0]])
    found = drawn(classifiers.build(name, classes=10, normalization=per_channel), shape)
    if found.symbol.list_auxiliary_states():
        found = calibrated(found, draw_images(16, shape))
    assert_equal(found, 1e-4)


@pytest.mark.thorough
def test_the_published_network(toolkit_data: Path) -> None:
    found = read_checkpoint(toolkit_data / "mobilefacenet_y1" / "model", 0)
    assert_equal(found, 1e-4, images=draw_images(14, (3, 112, 112)), batch=7)


@pytest.fixture
def small() -> Checkpoint:
    x = sym.BatchNorm(maps(), fix_gamma=True, name="norm")
    x = sym.FullyConnected(x, num_hidden=3, name="pre_fc1")
    return drawn(sym.BatchNorm(x, fix_gamma=True, name="fc1"), (3, *SIZE))


def test_versions_and_names(small: Checkpoint) -> None:
    model = exported(small)
    assert (model.ir_version, model.opset_import[0].version) == (IR_VERSION, OPSET) == (7, 13)
    names = [one.name for one in (*model.graph.input, *model.graph.output)]
    assert names == ["data", "fc1_output"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "None"
    # Nothing but parameters that are used; a fixed gamma is none.
    used = {name for node in model.graph.node for name in node.input}
    constants = {one.name for one in model.graph.initializer}
    assert {"maps_weight", "norm_beta"} <= constants <= used - {"norm_gamma"}


def test_half(small: Checkpoint) -> None:
    types, graph = import_onnx().TensorProto, exported(small, HALF).graph
    kinds = {one.name: one.data_type for one in graph.initializer}
    # The BatchNorm that gives the embedding is not.
    assert (kinds["maps_weight_float16"], kinds["fc1_beta"]) == (types.FLOAT16, types.FLOAT)
    for one in (graph.input[0], graph.output[0]):
        assert one.type.tensor_type.elem_type == types.FLOAT
    small.weights["maps_weight"][0] = 1e5
    assert_refused(
        "'maps_weight_float16' up to 100000, beyond float16; export", exported, small, HALF
    )
    exported(small)
    # Squares beyond float16, as those of GNAP, are summed in single precision.
    x = maps() * 1000.0
    x = sym.broadcast_div(x, sym.sqrt(sym.sum(x * x, axis=1, keepdims=True)))
    assert_equal(drawn(embedded(x), (3, *SIZE)), 2e-2, HALF)


FULL = {"pooling_convention": "full", "name": "odd"}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (of(sym.BatchNorm, axis=2, name="odd"), "normalizes axis 2, and ONNX"),
        (of(sym.Dropout, mode="always", name="odd"), "drops elements in inf"),
        (of(sym.Pooling, kernel=(1, 1), stride=(9, 9), **FULL), "windows that lie outside"),
        (of(sym.Pooling, kernel=(3, 3), stride=(2, 3), pad=(1, 1), **FULL), "windows that lie out"),
        (lambda x: sym.slice_like(x, x, name="odd"), "slice_like.* has no translation"),
    ],
)
def test_what_has_no_translation_is_named(build: Callable[[Any], Any], message: str) -> None:
    assert_refused(f"'odd' .*{message}", exported, embedding(build))


def hard_swish(x: Any) -> Any:
    """Its nodes have names that the client looks for."""
    x = sym.BatchNorm(x, name="bn_data")
    return x * sym.clip(x + 3, 0, 6) / 6 - 1


PIXELS: dict[str, Callable[[Any], Any]] = {
    "InsightFace's": lambda x: (x - 127.5) * 0.0078125,
    "per channel": lambda x: sym.image.normalize(x / 255.0, (0.5, 0.4, 0.3), (0.2, 0.21, 0.22)),
    "a BatchNorm": lambda x: sym.BatchNorm(x, name="bn_data"),
    "none": lambda x: x,
    "a product": lambda x: x * 0.01,
    "a sum and a cast": lambda x: sym.Cast(sym.identity(x + 3.0), dtype="float32"),
    "reversed": lambda x: 255.0 - x,
    "a zero": lambda x: (x * 0.0) + 1.0,
    "others after it": hard_swish,
    "two readers of scaled pixels": lambda x: hard_swish((x - 127.5) * 0.01),
}


@pytest.mark.parametrize("case", PIXELS)
def test_the_client_hands_over_pixels_as_they_are(case: str) -> None:
    """InsightFace's ArcFaceONNX finds their scaling among the nodes, and gets what MXNet gives."""
    x = PIXELS[case](sym.var("data"))
    x = sym.Convolution(x, num_filter=4, kernel=(3, 3), pad=(1, 1), name="conv0")
    found = drawn(sym.FullyConnected(x, num_hidden=5, name="fc1"), (3, 8, 8))
    for form, limit in ((Form(), 1e-5), (Form(takes_bytes=True), 1e-5), (Form("float16"), 1e-2)):
        names = [node.name for node in exported(found, form).graph.node[:8]]
        for beginnings in (("Sub", "_minus"), ("Mul", "_mul")):
            assert any(name.startswith(beginnings) for name in names)
        assert_equal(found, limit, form)


def test_pixels_that_nothing_is_done_to_stay_exact_and_our_two_nodes_are_alone() -> None:
    """A weight of one, so that the result is the pixels."""
    found = drawn(sym.FullyConnected(sym.var("data"), num_hidden=192, name="fc1"), (3, 8, 8))
    found.weights["fc1_weight"][:] = np.eye(192)
    found.weights["fc1_bias"][:] = 0
    images = draw_images(4, (3, 8, 8))
    features = OnnxNetwork(exported(found).SerializeToString()).extract(images)
    np.testing.assert_array_equal(features, images.reshape(4, -1).astype(np.float32))
    graph = exported(drawn(backbones.build("tiny"), (3, 112, 112))).graph
    assert [node.op_type for node in graph.node[:3]] == ["Sub", "Mul", "Conv"]
    # Constants are no nodes, of which the client would count eight.
    assert not [node for node in graph.node if node.op_type == "Constant"]
