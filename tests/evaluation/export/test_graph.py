"""Every operator and every network computes in ONNX Runtime what it computes in MXNet."""

from __future__ import annotations

import dataclasses
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import backbones
from backbones import classifiers
from backbones.checkpoint import Checkpoint, read_checkpoint
from backbones.classifiers import Normalization
from backbones.graph.operators import OPERATORS
from evaluation.export.comparison import draw_images, largest_difference
from evaluation.export.graph import IR_VERSION, OPSET, TRANSLATED, Form, to_onnx
from evaluation.onnx_runtime import OnnxNetwork
from runtime.errors import DataError
from runtime.mxnet import mx
from runtime.untrusted.onnx_model import import_onnx
from tests.support.onnx_networks import (
    by_mxnet,
    by_onnx,
    calibrated,
    drawn,
    exported,
    network_of,
)

SIZE = (9, 7)
CHANNELS = 4
FOURTEEN = [
    *("VGG16", "ResNet18", "ResNet50", "ResNet101", "RegNetX_200MF", "RegNetY_400MF"),
    *("MobileNetV2", "ResNeXt29_32x4d", "ResNeXt29_2x64d", "SimpleDLA", "DenseNet121"),
    *("PreActResNet18", "DPN92", "DLA"),
]
HALF = Form("float16")
sym = mx.sym


def operator(name: str) -> Any:
    """An operator of MXNet by any of its names, which are in several places."""
    places = (sym, sym._internal, sym.contrib, sym.op)
    found = [getattr(place, name) for place in places if hasattr(place, name)]
    return found[0]


def maps(channels: int = CHANNELS) -> Any:
    """Feature maps, some positive and some negative, of a convolution."""
    return sym.Convolution(
        (sym.var("data") - 127.5) * 0.0078125, num_filter=channels, kernel=(3, 3), name="maps"
    )


def embedded(x: Any) -> Any:
    return sym.FullyConnected(sym.identity(x, name="last"), num_hidden=3, name="fc1")


def activated(kind: str) -> Any:
    return lambda x: sym.Activation(x, act_type=kind)


def leaky(kind: str, **attributes: float) -> Any:
    return lambda x: sym.LeakyReLU(x, act_type=kind, **attributes)


def pooled(**attributes: Any) -> Any:
    return lambda x: sym.Pooling(x, **attributes)


def normed(kind: Any, **attributes: Any) -> Any:
    return lambda x: kind(x, name="norm", **attributes)


def positive(x: Any) -> Any:
    return sym.abs(x) + 0.5


def of_positive(kind: Any, **attributes: float) -> Any:
    return lambda x: kind(positive(x), **attributes)


def of_two(kind: Any) -> Any:
    return lambda x: kind(positive(x), positive(x * x))


def multiplied(kind: Any, axis: Any) -> Any:
    return lambda x: sym.broadcast_mul(x, kind(x, axis=axis, keepdims=True))


# MXNet has no default for the power.
LP: dict[str, dict[str, int]] = {"max": {}, "avg": {}, "sum": {}, "lp": {"p_value": 2}}
# What stands between the maps [b, 4, 7, 5] and the embedding.
CASES: dict[str, Callable[[Any], Any]] = {
    **{kind: activated(kind) for kind in ("relu", "sigmoid", "softrelu", "softsign", "tanh")},
    "leaky": leaky("leaky", slope=0.1),
    "elu": leaky("elu", slope=0.7),
    **{kind: leaky(kind) for kind in ("selu", "gelu", "prelu")},
    "rrelu": lambda x: sym.LeakyReLU(x, act_type="rrelu")[0],
    "prelu of one slope": lambda x: sym.LeakyReLU(x, sym.var("one_gamma", shape=(1,)), "prelu"),
    "prelu of vectors": lambda x: sym.LeakyReLU(sym.Flatten(x), act_type="prelu"),
    "hard sigmoid": lambda x: sym.hard_sigmoid(x, alpha=0.3, beta=0.4),
    "fixed gamma": normed(sym.BatchNorm),
    "gamma": normed(sym.BatchNorm, fix_gamma=False, eps=2e-5),
    "norm of vectors": lambda x: sym.BatchNorm(sym.Flatten(x), fix_gamma=False, name="norm"),
    "instance norm": normed(sym.InstanceNorm, eps=1e-2),
    "layer norm": normed(sym.LayerNorm),
    "layer norm of channels": normed(sym.LayerNorm, axis=1, eps=1e-2),
    **{
        f"l2 {mode}": normed(sym.L2Normalization, mode=mode, eps=1e-3)
        for mode in ("instance", "channel", "spatial")
    },
    "groups": lambda x: sym.Convolution(
        x, num_filter=8, kernel=(3, 1), stride=(2, 1), pad=(1, 0), num_group=2, name="groups"
    ),
    "dilation": lambda x: sym.Convolution(
        x, num_filter=2, kernel=(2, 3), dilate=(3, 2), no_bias=True, name="dilated"
    ),
    "linear of rows": lambda x: sym.FullyConnected(x, num_hidden=6, flatten=False, name="rows"),
    "linear of rows without bias": lambda x: sym.FullyConnected(
        x, num_hidden=6, flatten=False, no_bias=True, name="rows"
    ),
    "no gradient": lambda x: sym.BlockGrad(x),
    "cast": lambda x: sym.Cast(x, dtype="float32"),
    "dropout": lambda x: sym.Dropout(x, p=0.5),
    **{
        f"{kind} pooling": pooled(kernel=(3, 2), stride=(2, 2), pool_type=kind, **LP[kind])
        for kind in ("max", "avg", "sum", "lp")
    },
    **{
        f"{kind} pooling, padded, {convention}": pooled(
            kernel=(4, 3),
            stride=(3, 3),
            pad=(1, 0),
            pool_type=kind,
            pooling_convention=convention,
            **LP[kind],
        )
        for kind in ("max", "avg", "sum", "lp")
        for convention in ("valid", "full")
    },
    **{
        f"avg pooling without padding, {convention}": pooled(
            kernel=(4, 3),
            stride=(3, 3),
            pad=(1, 0),
            pool_type="avg",
            count_include_pad=False,
            pooling_convention=convention,
        )
        for convention in ("valid", "full")
    },
    **{
        f"global {kind} pooling": pooled(
            kernel=(7, 7), global_pool=True, pool_type=kind, **LP[kind]
        )
        for kind in ("max", "avg", "sum", "lp")
    },
    "adaptive pooling to one": lambda x: sym.contrib.AdaptiveAvgPooling2D(x, output_size=1),
    "adaptive pooling": lambda x: sym.contrib.AdaptiveAvgPooling2D(x, output_size=(3, 2)),
    "adaptive pooling to a square": lambda x: sym.contrib.AdaptiveAvgPooling2D(x, output_size=3),
    **{
        f"{name} of {axis}": multiplied(operator(name), axis)
        for name in ("max", "mean", "min", "sum")
        for axis in (1, (2, 3), (-1, 1))
    },
    "sum of none": lambda x: sym.sum(x, axis=2),
    "mean but of": lambda x: sym.mean(x, axis=(0, 1), exclude=True),
    "mean of all": lambda x: sym.broadcast_div(x, sym.mean(positive(x))),
    "largest of all": lambda x: sym.broadcast_div(x, sym.max(positive(x), keepdims=True)),
    "clip": lambda x: sym.clip(x, -0.1, 0.2),
    "two maps": lambda x: sym.Concat(x, sym.square(x), x, dim=1),
    "rows beside each other": lambda x: sym.concat(x, sym.square(x), dim=-2),
    "sum of three": lambda x: sym.add_n(x, sym.square(x), x),
    "reshape": lambda x: sym.Reshape(x, shape=(-1, 2, 70)),
    "reshape with codes": lambda x: sym.Reshape(
        sym.SwapAxis(sym.Reshape(x, shape=(0, -4, 2, -1, -2)), dim1=1, dim2=2), shape=(0, -3, -2)
    ),
    "transpose": lambda x: sym.transpose(x, axes=(0, 2, 3, 1)),
    "transpose twice": lambda x: sym.transpose(sym.transpose(x)),
    "swap": lambda x: sym.swapaxes(x, dim1=1, dim2=3),
    "slice": lambda x: sym.slice(x, begin=(None, 1, -3), end=(None, None, None)),
    "slice with steps": lambda x: sym.slice(
        x, begin=(None, None, None, 4), end=(None, None, None, 0), step=(1, 2, -2, -1)
    ),
    "slice of an axis": lambda x: sym.slice_axis(x, axis=-1, begin=1, end=-1),
    "slice to an end": lambda x: sym.slice_axis(x, axis=2, begin=-4, end=None),
    "split": lambda x: operator("split")(x, num_outputs=2, axis=1)[1],
    "split and squeezed": lambda x: sym.split(x, num_outputs=5, axis=3, squeeze_axis=True)[2],
    "tile": lambda x: sym.tile(x, reps=(1, 2, 1, 3)),
    "tile of the last": lambda x: sym.tile(x, reps=(2,)),
    "tile with more axes": lambda x: sym.Reshape(
        sym.tile(sym.Flatten(x), reps=(1, 1, 2)), shape=(-3, 0)
    ),
    "pad": lambda x: sym.pad(
        x, mode="constant", constant_value=0.5, pad_width=(0, 0, 0, 0, 1, 0, 2, 1)
    ),
    "pad with the edge": lambda x: sym.pad(x, mode="edge", pad_width=(0, 0, 0, 0, 1, 0, 2, 1)),
    **{
        name: of_positive(operator(name))
        for name in ("abs", "exp", "log", "negative", "rsqrt", "sqrt", "square", "tanh")
    },
    **{f"function {name}": operator(name) for name in ("relu", "sigmoid")},
}
for word in ("Plus", "Minus", "Mul", "Div", "Power", "Maximum", "Minimum"):
    small = word.lower()
    names = [f"_{word}", f"_{small}", f"broadcast_{small}", f"elemwise_{small}"]
    names += {
        "plus": ["broadcast_add", "elemwise_add"],
        "minus": ["broadcast_sub", "elemwise_sub"],
    }.get(small, [])
    for one in OPERATORS.keys() & set(names):
        CASES[one] = of_two(operator(one))
    scalars = [f"_{word}Scalar", f"_{small}_scalar", f"_R{word}Scalar", f"_r{small}_scalar"]
    for one in OPERATORS.keys() & set(scalars):
        CASES[one] = of_positive(operator(one), scalar=0.75)


def images_of(found: Checkpoint, count: int = 5) -> np.ndarray:
    return draw_images(count, found.image_shape)


def assert_equal(found: Checkpoint, images: np.ndarray, form: Form, limit: float) -> None:
    model = OnnxNetwork(exported(found, form).SerializeToString())
    network = found.network()

    def reference(batch: np.ndarray) -> np.ndarray:
        output: np.ndarray = network(mx.nd.array(batch)).asnumpy()
        return output

    assert largest_difference(reference, model.extract, images, (1, len(images))) <= limit


@pytest.mark.parametrize("case", sorted(CASES))
def test_an_operator_gives_what_mxnet_gives(case: str) -> None:
    found = drawn(embedded(CASES[case](maps())), (3, *SIZE))
    expected = by_mxnet(found, images_of(found))
    assert np.ptp(expected, axis=0).min() > 0
    assert_equal(found, images_of(found), Form(), 1e-5)
    assert_equal(found, images_of(found), HALF, 2e-2)


def test_every_operator_of_a_checkpoint_is_translated_and_in_a_case() -> None:
    """MXNet writes the first name of each operator, whatever a file calls it."""
    seen = {"null"}
    for build in CASES.values():
        seen |= {node["op"] for node in drawn(embedded(build(maps())), (3, *SIZE)).graph["nodes"]}
    assert seen == TRANSLATED
    others = {
        *("ElementWiseSum", "cast", "concat", "flatten", "identity", "pad", "reshape", "split"),
        *("swapaxes", *(OPERATORS.keys() & CASES.keys())),
    }
    # What is done to the pixels is read elsewhere.
    assert OPERATORS.keys() - TRANSLATED - others == {"_image_normalize"}


@pytest.mark.parametrize(
    ("name", "output"),
    [
        *(("tiny", output) for output in ("E", "F", "FC", "GAP", "GDC", "GNAP", "J")),
        *(("mbf", "GDC"), ("mbf", "GNAP"), ("r18-se", "FC")),
    ],
)
def test_a_backbone_with_every_output(name: str, output: str) -> None:
    found = drawn(backbones.build(name, output=output), (3, 112, 112))
    assert_equal(found, images_of(found, 3), Form(), 1e-4)
    assert_equal(found, images_of(found, 3), HALF, 3e-2)


@pytest.mark.parametrize("name", ["LeNet", "RegNetY_400MF", "mobilenet0.25", "squeezenet1.1"])
def test_a_classifier(name: str) -> None:
    is_gray, is_zoo = name == "LeNet", "." in name
    shape = (1, 28, 28) if is_gray else (3, 224, 224) if is_zoo else (3, 32, 32)
    found = classifier(name, shape)
    assert_equal(found, images_of(found), Form(), 1e-4)


def classifier(name: str, shape: tuple[int, int, int]) -> Checkpoint:
    per_channel = Normalization((0.5, 0.4, 0.3)[: shape[0]], (0.2, 0.21, 0.22)[: shape[0]])
    symbol = classifiers.build(name, classes=10, normalization=per_channel)
    found = drawn(symbol, shape)
    has_statistics = found.symbol.list_auxiliary_states()
    return calibrated(found, draw_images(16, shape)) if has_statistics else found


@pytest.mark.models
@pytest.mark.parametrize("name", FOURTEEN)
def test_each_of_the_fourteen_classifiers_on_a_hundred_images(name: str) -> None:
    found = classifier(name, (3, 32, 32))
    model = OnnxNetwork(exported(found).SerializeToString())
    images = draw_images(100, (3, 32, 32))
    reference = network_extract(found)
    assert largest_difference(reference, model.extract, images, (1, 7)) <= 1e-4


def network_extract(found: Checkpoint) -> Callable[[np.ndarray], np.ndarray]:
    network = found.network()
    network.hybridize()
    return lambda batch: network(mx.nd.array(batch)).asnumpy()


@pytest.fixture(scope="module")
def faces(toolkit_data: Path) -> np.ndarray:
    """A hundred faces of LFW."""
    found: list[np.ndarray] = []
    with tarfile.open(toolkit_data / "lfw_112x112.tar.gz") as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(".jpg"):
                file = archive.extractfile(member)
                decoded = cv2.imdecode(np.frombuffer(file.read(), np.uint8), cv2.IMREAD_COLOR)
                found.append(np.ascontiguousarray(decoded[:, :, ::-1].transpose(2, 0, 1)))
            if len(found) == 100:
                break
    return np.stack(found)


def test_the_published_network_on_a_hundred_faces(toolkit_data: Path, faces: np.ndarray) -> None:
    found = read_checkpoint(toolkit_data / "mobilefacenet_y1" / "model", 0)
    model = OnnxNetwork(exported(found).SerializeToString())
    assert largest_difference(network_extract(found), model.extract, faces, (1, 7)) <= 1e-4


@pytest.mark.models
@pytest.mark.parametrize("name", ["tiny", "mbf", "mbf GNAP", "r50", "r100"])
def test_backbones_on_a_hundred_faces(name: str, faces: np.ndarray) -> None:
    network, _, output = name.partition(" ")
    symbol = backbones.build(network, output=output or None)
    found = calibrated(drawn(symbol, (3, 112, 112)), faces[:4])
    model = OnnxNetwork(exported(found).SerializeToString())
    assert largest_difference(network_extract(found), model.extract, faces, (1, 7)) <= 1e-4


class TestForm:
    def found(self) -> Checkpoint:
        x = sym.BatchNorm(maps(), fix_gamma=True, name="norm")
        return drawn(sym.BatchNorm(embedded_vector(x), fix_gamma=True, name="fc1"), (3, *SIZE))

    def test_versions_and_names(self) -> None:
        model = exported(self.found())
        assert (model.ir_version, model.opset_import[0].version) == (IR_VERSION, OPSET) == (7, 13)
        assert [one.name for one in model.graph.input] == ["data"]
        assert [one.name for one in model.graph.output] == ["fc1_output"]
        # Nothing but parameters that are used; a fixed gamma is none.
        used = {name for node in model.graph.node for name in node.input}
        constants = {one.name for one in model.graph.initializer}
        assert constants <= used and "norm_gamma" not in constants
        assert "maps_weight" in constants and "norm_beta" in constants

    def test_a_batch_of_any_size_or_of_one(self) -> None:
        images = images_of(self.found(), 5)
        free, fixed = exported(self.found()), exported(self.found(), Form(batch_size=2))
        dimension = free.graph.input[0].type.tensor_type.shape.dim[0]
        assert dimension.dim_param == "None"
        assert fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
        assert OnnxNetwork(fixed.SerializeToString()).batch_size == 2
        # The rest of five images is filled up.
        np.testing.assert_allclose(by_onnx(fixed, images), by_onnx(free, images), rtol=1e-5)

    def test_bytes(self) -> None:
        images = images_of(self.found(), 5)
        model = exported(self.found(), Form(takes_bytes=True))
        onnx = import_onnx()
        assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
        np.testing.assert_allclose(
            by_onnx(model, images), by_onnx(exported(self.found()), images), rtol=1e-6
        )

    def test_half(self) -> None:
        onnx = import_onnx()
        model = exported(self.found(), HALF)
        kinds = {one.name: one.data_type for one in model.graph.initializer}
        assert kinds["maps_weight_float16"] == onnx.TensorProto.FLOAT16
        # The BatchNorm that gives the embedding.
        assert kinds["fc1_beta"] == onnx.TensorProto.FLOAT
        for one in (model.graph.input[0], model.graph.output[0]):
            assert one.type.tensor_type.elem_type == onnx.TensorProto.FLOAT

    def test_a_weight_beyond_half_is_refused(self) -> None:
        found = self.found()
        found.weights["maps_weight"][0] = 1e5
        with pytest.raises(DataError, match="'maps_weight' up to 100000, beyond float16; export"):
            exported(found, HALF)
        exported(found)

    def test_squares_are_summed_in_single(self) -> None:
        """As GNAP does it, of values whose squares are beyond float16."""
        x = maps() * 1000.0
        x = sym.broadcast_div(x, sym.sqrt(sym.sum(x * x, axis=1, keepdims=True)))
        found = drawn(embedded(x), (3, *SIZE))
        assert_equal(found, images_of(found), HALF, 2e-2)


def embedded_vector(x: Any) -> Any:
    return sym.FullyConnected(x, num_hidden=3, name="pre_fc1")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: sym.BatchNorm(x, axis=2, name="odd"), "'odd' .*normalizes axis 2, and ONNX"),
        (lambda x: sym.Dropout(x, mode="always", name="odd"), "'odd' .*drops elements in inf"),
        (
            lambda x: sym.Pooling(
                x, kernel=(1, 1), stride=(9, 9), pad=(0, 0), pooling_convention="full", name="odd"
            ),
            "'odd' .*windows that lie outside",
        ),
        (
            lambda x: sym.Pooling(
                x, kernel=(3, 3), stride=(2, 3), pad=(1, 1), pooling_convention="full", name="odd"
            ),
            "'odd' .*windows that lie outside",
        ),
        (lambda x: sym.slice_like(x, x, name="odd"), "'odd' .*slice_like.* has no translation"),
        (
            lambda x: sym.Pooling(x, kernel=(2, 2), pool_type="lp", p_value=3, name="odd"),
            "'odd' .*has p_value = 3, for which",
        ),
    ],
)
def test_what_has_no_translation_is_named(build: Callable[[Any], Any], message: str) -> None:
    found = drawn(embedded(build(maps())), (3, *SIZE))
    with pytest.raises(DataError, match=message):
        exported(found)


def test_an_attribute_that_is_not_known_is_named() -> None:
    found = drawn(embedded(maps()), (3, *SIZE))
    network = network_of(found)
    index = [node["name"] for node in network.graph["nodes"]].index("maps")
    attributes = [dict(one) for one in network.attributes]
    attributes[index]["reflection"] = "2"
    network = dataclasses.replace(network, attributes=attributes)
    with pytest.raises(DataError, match="'maps' .*has reflection = 2, for which"):
        to_onnx(network, Form(), "fc1_output", "")
