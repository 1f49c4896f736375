"""The command, the model card, and iResNets under arcface_torch's names and back."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import safetensors.numpy

import backbones
from backbones import classifiers
from backbones.checkpoint import Checkpoint, read_checkpoint
from backbones.classifiers import Normalization
from backbones.graph.nodes import from_json
from backbones.model import Backbone
from evaluation.export import __main__ as command
from evaluation.export import arcface_torch, layers
from evaluation.export.__main__ import draw_images, relative_difference, weights_hash, write_card
from evaluation.export.arcface_torch import Tensors, read_state_dict, table, to_torch
from evaluation.network import OnnxNetwork
from runtime.errors import DataError
from runtime.untrusted.parameter_file import write_parameters
from tests.evaluation.export.onnx_networks import by_mxnet, drawn
from tests.evaluation.support import check_refusal, export_network
from tests.support import made_up_runs
from tests.support.launch import ROOT
from tests.support.sets import assert_refused, contents

COUNT = "bn1.num_batches_tracked"
WORDS = ["--model", "model,0"]
WEIGHTS = {"b": np.ones(2, np.float32), "a": np.zeros((1, 2), np.float32)}
# Environments with PyTorch: `PYTORCH=1 make bench` makes one.
ENVIRONMENTS = [one / ".venv-bench" for one in (ROOT, (ROOT / ".venv").resolve().parent)]
# Names of arcface_torch and ours, of each kind of layer.
NAMES = {
    "bn1.bias": "bn0_beta", "prelu.weight": "relu0_gamma",
    "layer2.0.bn1.running_mean": "stage2_unit1_bn1_moving_mean",
    "layer4.0.prelu.weight": "stage4_unit1_relu1_gamma",
    "layer4.1.conv2.weight": "stage4_unit2_conv2_weight",
    "layer3.0.downsample.0.weight": "stage3_unit1_conv1sc_weight",
    "bn2.bias": "bn1_beta", "fc.bias": "pre_fc1_bias", "features.bias": "fc1_beta",
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_network(tmp_path_factory.mktemp("checkpoint") / "model").parent


@pytest.fixture(autouse=True)
def _copy(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)


def test_model_and_card(capsys: pytest.CaptureFixture[str]) -> None:
    Path("config.json").write_text('{"num_classes": 127}')
    Path("metrics.jsonl").write_text('{"update": 20, "target": "lfw", "accuracy": 0.5}\n')
    command.main(WORDS)
    images = np.random.default_rng(1).integers(0, 256, (3, 3, 112, 112), dtype=np.uint8)
    expected = Backbone.load("model").extract(images)
    found = OnnxNetwork(Path("model.onnx").read_bytes()).extract(images)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    card = Path("model.md").read_text()
    count = f"parameters | {backbones.parameter_count('tiny', 8):,}"
    for said in ("num_classes | 127", "embedding | 8", count, "lfw | 0.5000 | 20 | 0.5000 | 20"):
        assert f"| {said} |" in card
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("model.onnx: 3 x 112 x 112 to fc1_output, float32, opset 13; ")
    assert second == "model.md: the model card"
    weights, digest = read_checkpoint("model", 0).weights, sha256(Path("model.onnx").read_bytes())
    assert f"SHA-256 `{digest.hexdigest()}`" in card and f"`{weights_hash(weights)}`" in card
    assert "| Python | 3." in card and "| numpy | 1." in card


def test_forms() -> None:
    output = Path("new/small.onnx")
    words = f"--output {output} --dtype float16 --batch-size 2 --input uint8"
    command.main([*WORDS, *words.split()])
    network = OnnxNetwork(output.read_bytes())
    assert network.takes_bytes and network.batch_size == 2
    assert "`data`, uint8, 2 x 3 x 112 x 112." in Path("new/small.md").read_text()
    assert output.stat().st_size < 0.6 * Path("model-0000.params").stat().st_size


def test_a_classifier() -> None:
    normalization = Normalization((0.13,), (0.31,))
    symbol = classifiers.build("LeNet", classes=10, normalization=normalization)
    symbol.save("model-symbol.json")
    weights = drawn(symbol, (1, 28, 28)).weights
    with Path("model-0000.params").open("wb") as file:
        write_parameters(file, {f"arg:{name}": one for name, one in weights.items()})
    command.main([*WORDS, "--image-size", "28", "28"])
    card = Path("model.md").read_text()
    assert "| classes | 10 |" in card and "Not known" in card and "any x 1 x 28 x 28" in card
    assert OnnxNetwork(Path("model.onnx").read_bytes()).image_shape == (1, 28, 28)
    check_refusal(command.main, WORDS, "has shape .*give the graph and the image size")


def test_a_wrong_translation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layers._ACTIVATIONS, "relu", "Abs")
    check_refusal(command.main, WORDS, "is not written: ONNX Runtime's output differs from MXN")
    assert not Path("model.onnx").exists() and not Path("model.md").exists()
    command.main([*WORDS, "--limit", "100"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model model", "'model' is not PREFIX,EPOCH"),
        ("model.pt --simplify True", "^--simplify is not an option here: leave it out"),
        ("--model m,0 --format torch --dtype float16", "--dtype: --format torch"),
        ("--from-torch model.pt", "--from-torch needs --output PREFIX"),
        ("--from-torch a.pt --output x --format onnx", "--format: --from-torch does not obey it"),
        ("--from-torch a.pt --output x --limit 1", "--limit: --from-torch does not obey it"),
        ("--model model,7", "does not exist"),
        ("--model model,0 --output net.md", "net.md is the name of the model card"),
        ("--model model,0 --output model-0000.params/x.onnx",
         "cannot be written: .*; choose another folder with --o"),
        ("--model model,0 --output model-0000.params", "0000.params would replace what this"),
        ("--model model,0 --format torch --output model-0000.params", "0000.params would replace"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(words: str, message: str) -> None:
    before = contents(Path())
    check_refusal(command.main, words.split(), message)
    assert contents(Path()) == before


def test_the_difference_is_relative_to_the_largest_element_of_its_image() -> None:
    expected = np.array([[10, 0, 5], [200, 0, 5]], np.float32)
    found = expected + np.array([[0, 0.5, 0], [0, 2, 0]], np.float32)
    assert relative_difference(expected, found) == pytest.approx(0.05)
    assert relative_difference(expected[1:], found[1:]) == pytest.approx(0.01)
    for wrong in (np.nan, np.inf):
        assert not relative_difference(expected, expected + wrong) < 1e9


def test_the_hash_is_of_names_shapes_and_values() -> None:
    a, b = WEIGHTS["a"], WEIGHTS["b"]
    assert weights_hash({"a": a, "b": b}) == weights_hash(WEIGHTS)
    for other in (np.array([1, 2], np.float32), b[:, np.newaxis], np.ones(2)):
        assert weights_hash({"a": a, "b": other}) != weights_hash(WEIGHTS)
    assert weights_hash({"a": a, "c": b}) != weights_hash(WEIGHTS)


def test_options_of_the_run_but_not_where_it_was_and_no_markup(tmp_path: Path) -> None:
    config = {
        **{"models_root": "/data/secret", "resume": "auto", "dataset": None, "mixup": 0.0},
        **{"lr_steps": [10, 20], "optimizer": "sgd", "sync_bn": False, "rec": ["/data/a", "b/c"]},
        "lr": 0.1,
        **{"network": "<img src=x onerror=alert(1)>", "loss": "[x](javascript:alert)\n# y"},
    }
    records: list[dict[str, Any]] = [{"update": 20, "loss": 40}]
    for update, accuracy in ((100, 0.91), (200, 0.97), (300, 0.96)):
        records.append({"update": update, "target": "a|<b>", "accuracy": accuracy})
    for value in (None, "0.9", [0.9], True, 10**400):
        records.append({"update": 300, "target": f"no {value}", "accuracy": value})
    made_up_runs.write(tmp_path, records, config)
    card = write_card("net", {"input": "x | y"}, tmp_path)
    # A line in a cell would end it.
    for said in ("lr_steps | 10,20", "optimizer | sgd", "rec | a,c", "lr | 0.1", "input | x \\| y",
                 "a\\|&lt;b> | 0.9600 | 300 | 0.9700 | 200"):  # fmt: skip
        assert f"| {said} |" in card
    for left_out in ("dataset", "mixup", "sync_bn", "/data", "<img", "\n# y"):
        assert left_out not in card
    assert "&lt;img src=x onerror=alert(1)>" in card and "| \\[x](javascript:alert)\\n# y |" in card
    assert card.startswith("# net\n") and "no " not in card


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("ours") / "model"
    found = drawn(backbones.build("r18", embedding_size=8), (3, 112, 112))
    found.weights["fc1_gamma"][:] = 1
    found.network().export(prefix)
    return prefix


@pytest.fixture
def ours(prefix: Path) -> Checkpoint:
    return read_checkpoint(prefix, 0)


@pytest.fixture(scope="module")
def tensors(prefix: Path) -> Tensors:
    command.main(["--model", f"{prefix},0", "--format", "torch"])
    return read_state_dict(prefix.with_name("model.safetensors"))


def assert_equal(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_names_and_shapes_are_those_of_arcface_torch(ours: Checkpoint, tensors: Tensors) -> None:
    names = list(to_torch(ours, ""))
    assert names[:2] == ["conv1.weight", "bn1.weight"] and names[5:7] == [COUNT, "prelu.weight"]
    assert names[-7:-4] == ["fc.weight", "fc.bias", "features.weight"]
    assert set(names) == set(tensors) and "layer2.1.downsample.0.weight" not in names
    for there, here in NAMES.items():
        np.testing.assert_array_equal(tensors[there], ours.weights[here], there)
    assert tensors["features.weight"].tolist() == [1.0] * 8
    count = tensors[COUNT]
    assert count.shape == () and count.dtype == np.int64 and tensors["fc.bias"].dtype == "f4"
    # The tensors of iresnet100: five of each norm, one of a convolution or PReLU, two of fc.
    assert len(table((3, 13, 30, 3))) == 1 + 5 + 1 + 49 * (5 * 3 + 3) + 4 * 6 + 5 + 2 + 5
    # Weights take up the other constants: ours are 1 / 128 and 2e-5, theirs 1 / 127.5 and 1e-5.
    scaled = ours.weights["conv0_weight"].astype(np.float64) * 127.5 / 128
    np.testing.assert_allclose(tensors["conv1.weight"], scaled, rtol=1e-7)
    for there, here in (("layer3.1.bn2", "stage3_unit2_bn2"), ("features", "fc1")):
        shifted = ours.weights[f"{here}_moving_var"].astype(np.float64) + 1e-5
        np.testing.assert_allclose(tensors[f"{there}.running_var"], shifted, rtol=1e-7)


def test_there_and_back_computes_the_same(ours, tensors, tmp_path: Path, capsys) -> None:
    """Also as torch.nn.parallel names tensors, and without the counts."""
    path = tmp_path / "other.safetensors"
    parallel = {f"module.{name}": one for name, one in tensors.items() if "tracked" not in name}
    safetensors.numpy.save_file(parallel, path)
    command.main(["--from-torch", str(path), "--output", str(tmp_path / "m")])
    assert "m-0000.params: an iResNet of (2, 2, 2, 2) units" in capsys.readouterr().out
    back, images = read_checkpoint(tmp_path / "m", 0), draw_images(1, (3, 112, 112))
    for op, name, value in (("_mul_scalar", "scalar", 1 / 127.5), ("BatchNorm", "eps", 1e-5)):
        nodes = [one for one in back.graph["nodes"] if one["op"] == op]
        assert {float(one["attrs"][name]) for one in nodes} == {value}
    assert_equal(by_mxnet(back, images), by_mxnet(ours, images))
    Backbone.load(tmp_path / "m")
    np.testing.assert_array_equal(to_torch(back, "")["conv1.weight"], tensors["conv1.weight"])


def test_pytorch_computes_the_same(ours: Checkpoint, tmp_path: Path) -> None:
    python = next((path / "bin/python" for path in ENVIRONMENTS if path.exists()), None)
    if python is None:
        pytest.skip("PyTorch is not installed: PYTORCH=1 make bench installs it")
    images, files = draw_images(2, (3, 112, 112)), (tmp_path / "tensors.npz", tmp_path / "i.npy")
    np.savez(files[0], **to_torch(ours, ""))
    np.save(files[1], images)
    words = [python, ROOT / "tests/evaluation/export/torch_iresnet.py", *files]
    subprocess.run(words, check=True, timeout=250)
    assert_equal(np.load(files[1]), by_mxnet(ours, images))


class Tensor(np.ndarray):
    def float(self) -> np.ndarray:
        return self.astype(np.float32)

    def numpy(self) -> np.ndarray:
        return self


def test_a_stand_in_for_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Mock(save=pickle.dump, from_numpy=lambda array: array.view(Tensor))
    torch.load.side_effect = lambda file, **_: pickle.load(file)
    monkeypatch.setitem(sys.modules, "torch", torch)
    small: Tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(7)}
    path = tmp_path / "model.pt"
    packed = arcface_torch.pack_state_dict(small, path)
    whole = {"epoch": 1, "state_dict_backbone": pickle.loads(packed), "step": None}
    for content in (packed, pickle.dumps(whole)):
        path.write_bytes(content)
        found = read_state_dict(path)
        assert found["a"].tolist() == small["a"].tolist() and found["n"].dtype == np.float32
    for other in ([1], {"a": 1}, {"state_dict_backbone": 3}):
        check_damaged(path, pickle.dumps(other))
    for call in torch.load.call_args_list:
        assert call.kwargs == {"map_location": "cpu", "weights_only": True}


def check_damaged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path.name} is no state dict .*; give one of arc") as e:
        read_state_dict(path)
    assert str(e.value).isprintable() and len(str(e.value)) < 500


def test_without_pytorch_its_files_are_one_line(prefix: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    path = tmp_path / "model.pt"
    path.write_bytes(b"cos\nsystem\n")
    for words in (f"--from-torch {path}", f"--model {prefix},0 --format torch"):
        message = "needs PyTorch, .*: pip install torch, or use a fi"
        check_refusal(command.main, [*words.split(), "--output", str(path)], message)
    assert path.read_bytes() == b"cos\nsystem\n"


def header(dtype: str, end: int = 24, name: str = "a") -> bytes:
    text = json.dumps({name: {"dtype": dtype, "shape": [2, 3], "data_offsets": [0, end]}}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(24)


def test_headers_that_lie_and_files_that_are_missing_or_too_large(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    for content in (b"", b"\x80\x02}q\0.", header("F32", 1 << 50), header("F9", name="\n\x1b[2J")):
        check_damaged(path, content)
    for name in ("missing.safetensors", "m" * 300 + ".safetensors"):
        assert_refused("No such file|File name too", read_state_dict, tmp_path / name)
    os.truncate(path, (1 << 32) + 1)
    assert_refused("it has more than 4,294,967,296 bytes", read_state_dict, path)


def test_other_state_dicts_are_refused(tensors: Tensors, tmp_path: Path) -> None:
    scaled, number = tensors["features.weight"] * 2, np.array(1, np.float32)
    lacking = {name: one for name, one in tensors.items() if name != "layer3.1.bn2.bias"}
    stages = {name: one for name, one in tensors.items() if not name.startswith("layer4.")}
    path = tmp_path / "other.safetensors"
    for changed, message in (
        (lacking, "'layer3.1.bn2.bias' is of one of the two alone"),
        (stages, "is no iResNet of arcface_torch: 'layer1' is"),
        ({**tensors, "fc.bias": np.ones(9, np.float32)}, "'pre_fc1_bias' has shape"),
        ({**tensors, "features.weight": scaled}, "has a trained 'features.weight'"),
        ({**tensors, "features.weight": number}, r"has shape \(8, 25088\), this network"),
        ({**tensors, f"layer{'1' * 5000}.0.conv1.weight": number}, "is no iResNet of arcface_t"),
        ({**tensors, "a" * 5000: number}, "torch: 'a{79} is of one of the two alone"),
    ):
        safetensors.numpy.save_file(changed, path)
        words = ["--from-torch", str(path), "--output", str(tmp_path / "m")]
        check_refusal(command.main, words, message)
    assert not list(tmp_path.glob("m-*"))


def test_other_networks_are_refused(ours: Checkpoint) -> None:
    found = drawn(backbones.build("tiny", embedding_size=8), (3, 112, 112))
    assert_refused("net has no counterpart in arcface_torch", to_torch, found, "net")
    graph = ours.graph
    for node in graph["nodes"]:
        if node["op"] == "_minus_scalar":
            node["attrs"]["scalar"] = "100"
    changed = ours._replace(symbol=from_json(graph))
    assert_refused("net does not subtract 127.5 from its pixels", to_torch, changed, "net")
