from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.onnx_runtime import OnnxNetwork
from runtime.errors import DataError
from runtime.untrusted.onnx_model import import_onnx

ROOT = Path(__file__).resolve().parents[2]


def model(inputs: int = 1, shape: tuple[Any, ...] = ("None", 3, 4, 4)) -> bytes:
    """The mean of each map."""
    onnx = import_onnx()
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("GlobalAveragePool", [f"x{index}"], [f"y{index}"])
        for index in range(inputs)
    ]
    nodes.append(helper.make_node("Sum", [f"y{index}" for index in range(inputs)], ["z"]))
    nodes.append(helper.make_node("Flatten", ["z"], ["out"]))
    given = [helper.make_tensor_value_info(f"x{n}", kind, shape) for n in range(inputs)]
    made = [helper.make_tensor_value_info("out", kind, [shape[0], 3])]
    graph = helper.make_graph(nodes, "g", given, made)
    opset = helper.make_opsetid("", 13)
    built = helper.make_model(graph, opset_imports=[opset], ir_version=7)
    content: bytes = built.SerializeToString()
    return content


@pytest.mark.parametrize("batch", ["None", 2, 8])
def test_any_number_of_images(tmp_path: Path, batch: Any) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 4), dtype=np.uint8)
    path = tmp_path / "model.onnx"
    path.write_bytes(model(shape=(batch, 3, 4, 4)))
    network = OnnxNetwork(path)
    assert network.batch_size == (None if batch == "None" else batch)
    assert network.image_shape == (3, 4, 4)
    found = network.extract(images)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, images.mean(axis=(2, 3)), rtol=1e-6)


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for content, message in (
        (b"", "is refused as an ONNX model: ONNX Runtime refuses it"),
        (b"no model", "is refused as an ONNX model: it is no protobuf message"),
        (model(inputs=2), "has 2 inputs and 1 outputs; give a network from images"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            OnnxNetwork(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(DataError, match="missing.onnx cannot be read"):
        OnnxNetwork(tmp_path / "missing.onnx")


def test_nothing_else_imports_them() -> None:
    """Not even the modules of the command, nor MXNet; in a process where no test has done so."""
    code = (
        "import sys, train, classify, evaluation.verification, evaluation.export.__main__;"
        "import backbones.model, training.verifier;"
        "assert not {'onnx', 'onnxruntime', 'torch'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, check=True, timeout=120)
