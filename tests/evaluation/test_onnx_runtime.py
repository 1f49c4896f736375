from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.network import FaceNetwork, open_network
from evaluation.onnx_runtime import OnnxNetwork, normalizes_pixels
from runtime.errors import DataError
from runtime.untrusted.onnx_model import import_onnx

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 4), dtype=np.uint8)
MEANS = IMAGES.mean(axis=(2, 3))


def model(inputs: int = 1, shape: tuple[Any, ...] = ("None", 3, 4, 4)) -> bytes:
    """The mean of each map."""
    onnx = import_onnx()
    helper, kind, numbers = onnx.helper, onnx.TensorProto.FLOAT, range(inputs)
    nodes = [helper.make_node("GlobalAveragePool", [f"x{n}"], [f"y{n}"]) for n in numbers]
    nodes.append(helper.make_node("Sum", [f"y{n}" for n in numbers], ["z"]))
    nodes.append(helper.make_node("Flatten", ["z"], ["out"]))
    given = [helper.make_tensor_value_info(f"x{n}", kind, shape) for n in numbers]
    made = [helper.make_tensor_value_info("out", kind, [shape[0], 3])]
    graph = helper.make_graph(nodes, "g", given, made)
    opset = helper.make_opsetid("", 13)
    built = helper.make_model(graph, opset_imports=[opset], ir_version=7)
    content: bytes = built.SerializeToString()
    return content


def opened(
    path: Path, op: str, inputs: list[str], batch: Any = "None", **attributes: Any
) -> FaceNetwork:
    """A network whose last operator gets z, the means [b, 3, 1, 1], or s, the shape [1, -1]."""
    onnx = import_onnx()
    helper, types = onnx.helper, onnx.TensorProto
    made = onnx.load_from_string(model(shape=(batch, 3, 4, 4)))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, -1]), "s"))
    made.graph.node[-1].CopyFrom(helper.make_node(op, inputs, ["out"], **attributes))
    kind = types.STRING if op == "Cast" else types.FLOAT
    output = helper.make_tensor_value_info("out", kind, None)
    if op == "SequenceConstruct":
        output = helper.make_tensor_sequence_value_info("out", kind, None)
    made.graph.output[0].CopyFrom(output)
    path.write_bytes(made.SerializeToString())
    return open_network(Namespace(model=path, image_size=None, dtype="float32"))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "message"),
    [
        ("ReduceMean", ["z"], {"keepdims": 0}, r"\[\] for 2 images; export it with an open batch"),
        ("ReduceMean", ["z"], {"axes": [0, 2, 3], "keepdims": 0}, r"gives \[3\] for 2 images"),
        ("ReduceMean", ["z"], {"axes": [0]}, r"gives \[1, 3, 1, 1\] for 2 images"),
        ("Reshape", ["z", "s"], {}, r"gives \[1, 6\] for 2 images"),
        ("Identity", ["z"], {}, r"gives \[2, 3, 1, 1\] for two images"),
        ("Cast", ["z"], {"to": 8}, r"has an output of the type tensor\(string\)"),
        ("SequenceConstruct", ["z"], {}, r"has an output of the type seq\(tensor\(float\)\)"),
    ],
)
def test_an_output_that_is_no_row_per_image_is_refused(
    tmp_path: Path, op: str, inputs: list[str], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        opened(tmp_path / "model.onnx", op, inputs, **attributes)
    assert "\n" not in str(caught.value)


def test_a_row_per_batch_of_one_is_a_row_per_image(tmp_path: Path) -> None:
    network = opened(tmp_path / "model.onnx", "Reshape", ["z", "s"], batch=1)
    expected = (MEANS - 127.5) / 127.5
    np.testing.assert_allclose(network.extract(IMAGES), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", ["None", 2, 8])
def test_any_number_of_images(batch: Any) -> None:
    network = OnnxNetwork(model(shape=(batch, 3, 4, 4)))
    assert network.batch_size == (None if batch == "None" else batch)
    assert network.image_shape == (3, 4, 4)
    found = network.extract(IMAGES)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, MEANS, rtol=1e-6)


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for content, message in (
        (b"", "is refused as an ONNX model: ONNX Runtime refuses it"),
        (b"no model", "is refused as an ONNX model: it is no protobuf message"),
        (model(inputs=2), "has 2 inputs and 1 outputs; give a network from images"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            open_network(Namespace(model=path, image_size=None, dtype="float32"))
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(DataError, match="missing.onnx cannot be read"):
        path = tmp_path / "missing.onnx"
        open_network(Namespace(model=path, image_size=None, dtype="float32"))


@pytest.mark.parametrize(
    ("names", "normalizes"),
    [
        (["Sub_0", "Mul_1"], True),
        (["_minusscalar0", "_mulscalar0"], True),
        (["Sub_0", "Div_1"], True),
        (["Sub_0", "Conv_1"], False),
        (["Conv_0", "Mul_1", "Div_2"], False),
    ],
)
def test_a_difference_and_a_product_or_quotient_normalize(
    tmp_path: Path, names: list[str], normalizes: bool
) -> None:
    """Other pixels are scaled outside, as by InsightFace."""
    made = import_onnx().load_from_string(model(shape=("None", 3, "h", "w")))
    for name in reversed(names):
        node = import_onnx().helper.make_node("Identity", ["x0"], [f"unused {name}"], name)
        made.graph.node.insert(0, node)
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    assert normalizes_pixels(path.read_bytes()) == normalizes
    network = open_network(Namespace(model=path, image_size=(4, 4), dtype="float32"))
    expected = MEANS if normalizes else (MEANS - 127.5) / 127.5
    np.testing.assert_allclose(network.extract(IMAGES), expected, rtol=1e-4, atol=1e-5)
