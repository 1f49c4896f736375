from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.network import FaceNetwork, OnnxNetwork, normalizes_pixels, open_network
from runtime.errors import DataError
from runtime.untrusted.onnx_model import import_onnx

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 4), dtype=np.uint8)
MEANS = IMAGES.mean(axis=(2, 3))
SCALED = (MEANS - 127.5) / 127.5


def model(inputs: int = 1, shape: tuple[Any, ...] = ("None", 3, 4, 4)) -> Any:
    """The mean of each map: z, and flattened."""
    onnx = import_onnx()
    helper, kind, numbers = onnx.helper, onnx.TensorProto.FLOAT, range(inputs)
    nodes = [helper.make_node("GlobalAveragePool", [f"x{n}"], [f"y{n}"]) for n in numbers]
    nodes.append(helper.make_node("Sum", [f"y{n}" for n in numbers], ["z"]))
    nodes.append(helper.make_node("Flatten", ["z"], ["out"]))
    given = [helper.make_tensor_value_info(f"x{n}", kind, shape) for n in numbers]
    made = [helper.make_tensor_value_info("out", kind, [shape[0], 3])]
    graph = helper.make_graph(nodes, "g", given, made)
    opset = helper.make_opsetid("", 13)
    return helper.make_model(graph, opset_imports=[opset], ir_version=7)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[bytes], FaceNetwork]:
    def opened(content: bytes) -> FaceNetwork:
        (tmp_path / "model.onnx").write_bytes(content)
        options = Namespace(model=tmp_path / "model.onnx", image_size=(4, 4), dtype="float32")
        return open_network(options)

    return opened


def ending(op: str, inputs: str = "z", batch: Any = "None", **attributes: Any) -> bytes:
    """A network whose last operator gets z, the means [b, 3, 1, 1], or s, the shape [1, -1]."""
    onnx = import_onnx()
    helper, types = onnx.helper, onnx.TensorProto
    made = model(shape=(batch, 3, 4, 4))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, -1]), "s"))
    made.graph.node[-1].CopyFrom(helper.make_node(op, inputs.split(), ["out"], **attributes))
    kind = types.STRING if op == "Cast" else types.FLOAT
    form = "tensor_sequence" if op == "SequenceConstruct" else "tensor"
    made.graph.output[0].CopyFrom(getattr(helper, f"make_{form}_value_info")("out", kind, None))
    return made.SerializeToString()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ending("ReduceMean", keepdims=0), r"\[\] for 2 images; export it with an open ba"),
        (lambda: ending("ReduceMean", axes=[0, 2, 3], keepdims=0), r"gives \[3\] for 2 images"),
        (lambda: ending("ReduceMean", axes=[0]), r"gives \[1, 3, 1, 1\] for 2 images"),
        (lambda: ending("Reshape", "z s"), r"gives \[1, 6\] for 2 images"),
        (lambda: ending("Identity"), r"gives \[2, 3, 1, 1\] for two images"),
        (lambda: ending("Cast", to=8), r"has an output of the type tensor\(string\)"),
        (lambda: ending("SequenceConstruct"), r"has an output of the type seq\(tensor\(float\)\)"),
        (bytes, "is refused as an ONNX model: ONNX Runtime refuses it"),
        (lambda: b"no model", "is refused as an ONNX model: it is no protobuf message"),
        (lambda: model(inputs=2).SerializeToString(), "has 2 inputs and 1 outputs; give a"),
    ],
)
def test_other_files_are_refused_in_one_line(opened, build, message: str) -> None:
    with pytest.raises(DataError, match=f"model.onnx.*{message}") as caught:
        opened(build())
    assert "\n" not in str(caught.value)


def test_a_row_per_batch_of_one_is_a_row_per_image(opened) -> None:
    network = opened(ending("Reshape", "z s", batch=1))
    np.testing.assert_allclose(network.extract(IMAGES), SCALED, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", ["None", 2, 8])
def test_any_number_of_images(batch: Any) -> None:
    network = OnnxNetwork(model(shape=(batch, 3, 4, 4)).SerializeToString())
    assert network.batch_size == (None if batch == "None" else batch)
    assert network.image_shape == (3, 4, 4)
    found = network.extract(IMAGES)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, MEANS, rtol=1e-6)


@pytest.mark.parametrize(
    ("names", "normalizes"),
    [
        (["Sub_0", "Mul_1"], True),
        (["_minusscalar0", "_mulscalar0"], True),
        (["Sub_0", "Div_1"], True),
        (["Sub_0", "Conv_1"], False),
        (["Sub_0", *"123456", "Mul_7"], True),
        (["Sub_0", *"1234567", "Mul_8"], False),
        (["Conv_0", "Mul_1", "Div_2"], False),
    ],
)
def test_a_difference_and_a_product_or_quotient_normalize(opened, names, normalizes: bool) -> None:
    """Other pixels are scaled outside, as by InsightFace."""
    made = model(shape=("None", 3, "h", "w"))
    for name in reversed(names):
        node = import_onnx().helper.make_node("Identity", ["x0"], [f"unused {name}"], name)
        made.graph.node.insert(0, node)
    content = made.SerializeToString()
    assert normalizes_pixels(content) == normalizes
    expected = MEANS if normalizes else SCALED
    np.testing.assert_allclose(opened(content).extract(IMAGES), expected, rtol=1e-4, atol=1e-5)
