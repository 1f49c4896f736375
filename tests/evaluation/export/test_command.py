"""The command: files that are written, and refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backbones
from backbones import classifiers
from backbones.classifiers import Normalization
from backbones.graph.parameter_file import write_parameters
from backbones.model import Backbone
from evaluation.export import __main__ as command
from evaluation.export import layers
from evaluation.export.__main__ import draw_images, largest_difference
from evaluation.onnx_runtime import OnnxNetwork
from runtime.errors import ConfigError, DataError
from runtime.untrusted.onnx_model import import_onnx
from tests.evaluation.untrained import export_network
from tests.support.onnx_networks import drawn


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A checkpoint of an untrained network."""
    return export_network(tmp_path / "model")


def test_model_and_card(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"dataset": "faces", "rec": ["/home/somebody/faces"], "num_classes": 127, "lr": 0.1}
    (prefix.parent / "config.json").write_text(json.dumps(config))
    verified: dict[str, Any] = {"time": 1.0, "target": "lfw"}
    records: list[dict[str, Any]] = [{"time": 1.0, "update": 20, "loss": 40.0}]
    for update, accuracy in ((100, 0.91), (200, 0.97), (300, 0.96)):
        records.append({**verified, "update": update, "accuracy": accuracy})
    (prefix.parent / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    command.main(["--model", f"{prefix},0"])
    images = np.random.default_rng(1).integers(0, 256, (3, 3, 112, 112), dtype=np.uint8)
    expected = Backbone.load(prefix).extract(images)
    found = OnnxNetwork(prefix.with_suffix(".onnx").read_bytes()).extract(images)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    card = prefix.with_suffix(".md").read_text()
    for said in (
        *("num_classes | 127", "rec | faces", "lr | 0.1", "lfw | 0.9600 | 300 | 0.9700 | 200"),
        *("embedding | 8", f"parameters | {backbones.parameter_count('tiny', 8):,}"),
    ):
        assert f"| {said} |" in card
    assert "somebody" not in card
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{prefix}.onnx: 3 x 112 x 112 to fc1_output, float32, opset 13; ")
    assert lines[1:] == [f"{prefix}.md: the model card"]


def test_forms(prefix: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "small.onnx"
    words = ["--model", f"{prefix},0", "--output", str(output), "--dtype", "float16"]
    command.main([*words, "--batch-size", "2", "--input", "uint8"])
    onnx = import_onnx()
    pixels = onnx.load(str(output)).graph.input[0]
    assert pixels.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert OnnxNetwork(output.read_bytes()).batch_size == 2
    assert "`data`, uint8, 2 x 3 x 112 x 112." in (tmp_path / "new" / "small.md").read_text()
    assert output.stat().st_size < 0.6 * prefix.with_name("model-0000.params").stat().st_size


def test_a_classifier(tmp_path: Path) -> None:
    normalization = Normalization((0.13,), (0.31,))
    symbol = classifiers.build("LeNet", classes=10, normalization=normalization)
    symbol.save(str(tmp_path / "model-symbol.json"))
    weights = drawn(symbol, (1, 28, 28)).weights
    with (tmp_path / "model-0000.params").open("wb") as file:
        write_parameters(file, {f"arg:{name}": one for name, one in weights.items()})
    words = ["--model", f"{tmp_path / 'model'},0"]
    command.main([*words, "--image-size", "28", "28"])
    card = (tmp_path / "model.md").read_text()
    assert "| classes | 10 |" in card and "any x 1 x 28 x 28" in card
    assert OnnxNetwork((tmp_path / "model.onnx").read_bytes()).image_shape == (1, 28, 28)
    with pytest.raises(DataError, match="has shape .*give the graph and the image size"):
        command.main(words)


def test_a_wrong_translation_is_refused(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--model", f"{prefix},0"]
    monkeypatch.setitem(layers._ACTIVATIONS, "relu", "Abs")
    with pytest.raises(DataError, match="is not written: ONNX Runtime's output differs from MXN"):
        command.main(words)
    assert not prefix.with_suffix(".onnx").exists() and not prefix.with_suffix(".md").exists()
    command.main([*words, "--limit", "100"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model model", "'model' is not PREFIX,EPOCH"),
        ("model.pt --simplify True", "^--simplify is not an option here: leave it out"),
        ("--model m,0 --format torch --dtype float16", "--dtype: --format torch"),
        ("--model m,0 --format torch --batch-size 1", "--batch-size: --format t"),
        ("--from-torch a.pt --output x --format onnx", "--format: --from-torch does not obey it"),
        ("--from-torch a.pt --output x --image-size 9 9", "--image-size: --from-torch does not"),
        ("--from-torch a.pt --output x --limit 1", "--limit: --from-torch does not obey it"),
    ],
)
def test_mistakes_are_one_line(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        command.main(words.split())
    assert "\n" not in str(caught.value)


def test_files_that_are_missing_damaged_or_in_the_way(prefix: Path) -> None:
    words = ["--model", f"{prefix},0"]
    with pytest.raises(DataError, match="does not exist"):
        command.main(["--model", f"{prefix},7"])
    (prefix.parent / "config.json").write_text("{")
    with pytest.raises(DataError, match="config.json is damaged, and what is written from it wo"):
        command.main(words)
    path = prefix.parent / "config.json" / "x.onnx"
    with pytest.raises(DataError, match="cannot be written: .*; choose another folder with --o"):
        command.main([*words, "--output", str(path)])
    for name, form in (("params", "onnx"), ("params", "torch"), ("symbol", "onnx")):
        (path,) = prefix.parent.glob(f"*{name}*")
        content = path.read_bytes()
        with pytest.raises(ConfigError, match=f"{path.name} would replace what this command read"):
            command.main([*words, "--format", form, "--output", str(path)])
        assert path.read_bytes() == content
    with pytest.raises(ConfigError, match="net.md is the name of the model card"):
        command.main([*words, "--output", str(prefix.with_name("net.md"))])


def means(images: np.ndarray) -> np.ndarray:
    return images.mean(axis=(2, 3)).astype(np.float32)


def test_the_difference_is_relative_to_the_largest_element_of_its_image() -> None:
    images = np.zeros((4, 3, 2, 2), np.uint8)
    images[:, 0], images[1, 0], images[:, 2] = 10, 200, 5

    def other(batch: np.ndarray) -> np.ndarray:
        found = means(batch)
        # Of the image with 200: 2 / 200; of the others 0.5 / 10.
        found[:, 1] += np.where(batch[:, 0, 0, 0] == 200, 2.0, 0.5)
        return found

    assert largest_difference(means, other, images, (1,)) == pytest.approx(0.05)
    assert largest_difference(means, other, images[1:2], (1,)) == pytest.approx(0.01)
    assert largest_difference(means, means, images, (1, 3)) == 0


def test_batches_of_each_size_without_the_rest_and_what_is_not_finite() -> None:
    sizes: list[int] = []

    def noting(batch: np.ndarray) -> np.ndarray:
        sizes.append(len(batch))
        return means(batch)

    images = np.ones((7, 3, 2, 2), np.uint8)
    largest_difference(noting, means, images, (3, 7))
    assert sizes == [3, 3, 7]
    for wrong in (lambda b: means(b) * np.nan, lambda b: means(b) * np.inf, lambda b: b[:, :2, 0]):
        assert largest_difference(means, wrong, images, (1,)) == float("inf")
        assert largest_difference(wrong, means, images, (1,)) == float("inf")
    drawn_images = draw_images(3, (1, 28, 30))
    assert drawn_images.shape == (3, 1, 28, 30) and drawn_images.dtype == np.uint8
    np.testing.assert_array_equal(drawn_images, draw_images(3, (1, 28, 30)))
    assert np.abs(drawn_images[0].astype(int) - drawn_images[1]).mean() > 30
