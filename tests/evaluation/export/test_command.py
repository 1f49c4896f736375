"""The command: files that are written, refusals in one line, and the accuracy on LFW."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import backbones
from backbones import classifiers
from backbones.classifiers import Normalization
from backbones.graph.parameter_file import write_parameters
from backbones.model import Backbone
from backbones.options import BackboneOptions
from data.pack.__main__ import main as pack
from data.verification.bin_file import read_bin
from evaluation.export import __main__ as command
from evaluation.export import layers
from evaluation.onnx_runtime import OnnxNetwork
from evaluation.verification import evaluate
from runtime.errors import ConfigError, DataError
from runtime.untrusted.onnx_model import import_onnx
from tests.support.onnx_networks import drawn

TORCH = ["--from-torch", "a.pt", "--output", "x"]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A checkpoint of an untrained network."""
    Backbone.create(BackboneOptions(network="tiny", embedding_size=8)).export(tmp_path / "model")
    return tmp_path / "model"


def test_model_and_card(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"dataset": "faces", "rec": ["/home/somebody/faces"], "num_classes": 127, "lr": 0.1}
    (prefix.parent / "config.json").write_text(json.dumps(config))
    records = [
        {"time": 1.0, "update": update, "target": "lfw", "accuracy": accuracy}
        for update, accuracy in ((100, 0.91), (200, 0.97), (300, 0.96))
    ]
    records.insert(0, {"time": 1.0, "update": 20, "loss": 40.0})
    (prefix.parent / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    command.main(["--model", f"{prefix},0"])
    images = np.random.default_rng(1).integers(0, 256, (3, 3, 112, 112), dtype=np.uint8)
    expected = Backbone.load(prefix).extract(images)
    found = OnnxNetwork(prefix.with_suffix(".onnx")).extract(images)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    card = prefix.with_suffix(".md").read_text()
    for said in ("| num_classes | 127 |", "| rec | faces |", "| lr | 0.1 |"):
        assert said in card
    assert "| lfw | 0.9600 | 300 | 0.9700 | 200 |" in card and "somebody" not in card
    assert f"| parameters | {backbones.parameter_count('tiny', 8):,} |" in card
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{prefix}.onnx: 3 x 112 x 112 to fc1_output, float32, opset 13; ")
    assert lines[1] == f"{prefix}.md: the model card" and len(lines) == 2


def test_forms(prefix: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "small.onnx"
    words = ["--model", f"{prefix},0", "--output", str(output), "--dtype", "float16"]
    command.main([*words, "--batch-size", "2", "--input", "uint8"])
    model = import_onnx().load(str(output))
    assert model.graph.input[0].type.tensor_type.elem_type == import_onnx().TensorProto.UINT8
    assert OnnxNetwork(output).batch_size == 2
    assert (tmp_path / "new" / "small.md").is_file()
    assert output.stat().st_size < 0.6 * prefix.with_name("model-0000.params").stat().st_size


def test_a_classifier(tmp_path: Path) -> None:
    normalization = Normalization((0.13,), (0.31,))
    symbol = classifiers.build("LeNet", classes=10, normalization=normalization)
    found = drawn(symbol, (1, 28, 28))
    symbol.save(str(tmp_path / "model-symbol.json"))
    with (tmp_path / "model-0000.params").open("wb") as file:
        write_parameters(file, {f"arg:{name}": one for name, one in found.weights.items()})
    command.main(["--model", f"{tmp_path / 'model'},0", "--image-size", "28", "28"])
    card = (tmp_path / "model.md").read_text()
    assert "| classes | 10 |" in card and "any x 1 x 28 x 28" in card
    assert OnnxNetwork(tmp_path / "model.onnx").image_shape == (1, 28, 28)
    with pytest.raises(DataError, match="has shape .*give the graph and the image size"):
        command.main(["--model", f"{tmp_path / 'model'},0"])


def test_a_wrong_translation_is_refused(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layers._ACTIVATIONS, "relu", "Abs")
    with pytest.raises(DataError, match="is not written: ONNX Runtime's output differs from MXN"):
        command.main(["--model", f"{prefix},0"])
    assert not prefix.with_suffix(".onnx").exists() and not prefix.with_suffix(".md").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--model"),
        (["--model", "model"], "'model' is not PREFIX,EPOCH"),
        (["--model", "m,0", "--dtype", "bfloat16"], "--dtype"),
        (["model.pt", "--simplify", "True"], "^--simplify is not an option here: leave it out"),
        (["--model", "m,0", "--batch-size", "0"], "'0' is not a positive integer"),
        (["--model", "m,0", "--image-size", "0", "112"], "'0' is not a positive integer"),
        (["--model", "m,0", "--format", "torch", "--dtype", "float16"], "--dtype: --format torch"),
        (["--model", "m,0", "--format", "torch", "--batch-size", "1"], "--batch-size: --format t"),
        ([*TORCH, "--format", "onnx"], "--format: --from-torch does not obey it; leave it out"),
        ([*TORCH, "--image-size", "96", "96"], "--image-size: --from-torch does not obey it"),
        ([*TORCH, "--limit", "1"], "--limit: --from-torch does not obey it"),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        command.main(words)
    assert "\n" not in str(caught.value)


def test_files_that_are_missing_damaged_or_in_the_way(prefix: Path) -> None:
    words = ["--model", f"{prefix},0"]
    with pytest.raises(DataError, match="does not exist"):
        command.main(["--model", f"{prefix},7"])
    (prefix.parent / "config.json").write_text("{")
    with pytest.raises(DataError, match="config.json is damaged, and what is written from it wo"):
        command.main(words)
    (prefix.parent / "config.json").unlink()
    (prefix.parent / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written: .*; choose another folder with --o"):
        command.main([*words, "--output", str(prefix.parent / "file" / "x.onnx")])


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_no_output_replaces_what_is_read(prefix: Path, form: str) -> None:
    for name in ("model-0000.params", "model-symbol.json"):
        path = prefix.with_name(name)
        content = path.read_bytes()
        with pytest.raises(ConfigError, match=f"{name} would replace what this command reads"):
            command.main(["--model", f"{prefix},0", "--format", form, "--output", str(path)])
        assert path.read_bytes() == content
    with pytest.raises(ConfigError, match="net.md is the name of the model card"):
        command.main(["--model", f"{prefix},0", "--output", str(prefix.with_name("net.md"))])


@pytest.mark.models
def test_the_accuracy_on_lfw_is_that_of_mxnet(
    toolkit_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(toolkit_data / "lfw_112x112.tar.gz") as archive:
        archive.extractall(tmp_path / "faces")
    (folder,) = [one for one in (tmp_path / "faces").iterdir() if one.is_dir()]
    pairs = str(toolkit_data / "lfw_pairs.txt")
    words = ["data.pack", "--pairs", pairs, str(folder), str(tmp_path / "lfw.bin")]
    monkeypatch.setattr(sys, "argv", words)
    pack()
    model = toolkit_data / "mobilefacenet_y1" / "model"
    command.main(["--model", f"{model},0", "--output", str(tmp_path / "y1.onnx")])
    target = read_bin(str(tmp_path / "lfw.bin"))
    backbone = Backbone.load(model)
    backbone.hybridize()
    exported = OnnxNetwork(tmp_path / "y1.onnx")
    results = [
        evaluate(extract, target, batch_size=64) for extract in (backbone.extract, exported.extract)
    ]
    print(*results, sep="\n")
    assert results[0].accuracy == results[1].accuracy > 0.99
    assert results[0].tar_at_far == results[1].tar_at_far
