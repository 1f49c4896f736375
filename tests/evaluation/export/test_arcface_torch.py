"""iResNets under arcface_torch's names and back, with and without PyTorch."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import backbones
from backbones.checkpoint import Checkpoint, read_checkpoint
from backbones.graph.nodes import from_json
from backbones.model import Backbone
from evaluation.export import __main__ as command
from evaluation.export import arcface_torch
from evaluation.export.__main__ import draw_images
from evaluation.export.arcface_torch import Tensors, read_state_dict, table, to_torch
from runtime.errors import ConfigError, DataError
from tests.support.onnx_networks import by_mxnet, drawn

ROOT = Path(__file__).resolve().parents[3]
# Environments with PyTorch: `PYTORCH=1 make bench` makes one.
WITH_TORCH = [
    folder / ".venv-bench" / "bin" / "python"
    for folder in (ROOT, (ROOT / ".venv").resolve().parent)
]
# Names of arcface_torch and ours, of each kind of layer.
NAMES = {
    "bn1.bias": "bn0_beta", "prelu.weight": "relu0_gamma",
    "layer2.0.bn1.running_mean": "stage2_unit1_bn1_moving_mean",
    "layer2.1.conv1.weight": "stage2_unit2_conv1_weight",
    "layer4.0.prelu.weight": "stage4_unit1_relu1_gamma",
    "layer4.1.conv2.weight": "stage4_unit2_conv2_weight",
    "layer1.1.bn3.weight": "stage1_unit2_bn3_gamma",
    "layer3.0.downsample.0.weight": "stage3_unit1_conv1sc_weight",
    "bn2.bias": "bn1_beta", "fc.weight": "pre_fc1_weight", "fc.bias": "pre_fc1_bias",
    "features.bias": "fc1_beta",
}  # fmt: skip
FIRST = "conv1.weight bn1.weight bn1.bias bn1.running_mean bn1.running_var bn1.num_batches_tracked"
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small iResNet with drawn weights."""
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
    assert names[:7] == [*FIRST.split(), "prelu.weight"]
    assert names[-7:] == ["fc.weight", "fc.bias", *(f"features.{one}" for one in NORM)]
    assert set(names) == set(tensors) and "layer2.1.downsample.0.weight" not in names
    for there, here in NAMES.items():
        np.testing.assert_array_equal(tensors[there], ours.weights[here], there)
    assert tensors["features.weight"].tolist() == [1.0] * 8
    count = tensors["bn1.num_batches_tracked"]
    assert count.shape == () and count.dtype == np.int64 and tensors["fc.bias"].dtype == "f4"
    # The tensors of iresnet100: five of each norm, one of a convolution or PReLU, two of fc.
    assert len(table((3, 13, 30, 3))) == 1 + 5 + 1 + 49 * (5 * 3 + 3) + 4 * 6 + 5 + 2 + 5


def test_weights_take_up_the_other_constants(ours: Checkpoint, tensors: Tensors) -> None:
    """Ours are 1 / 128 and 2e-5, theirs 1 / 127.5 and 1e-5."""
    scaled = ours.weights["conv0_weight"].astype(np.float64) * 127.5 / 128
    np.testing.assert_allclose(tensors["conv1.weight"], scaled, rtol=1e-7)
    for there, here in (("layer3.1.bn2", "stage3_unit2_bn2"), ("features", "fc1")):
        shifted = ours.weights[f"{here}_moving_var"].astype(np.float64) + 1e-5
        np.testing.assert_allclose(tensors[f"{there}.running_var"], shifted, rtol=1e-7)


def test_there_and_back_computes_the_same(
    ours: Checkpoint, tensors: Tensors, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    python = next((path for path in WITH_TORCH if path.exists()), None)
    if python is None:
        pytest.skip("PyTorch is not installed: PYTORCH=1 make bench installs it")
    images, files = draw_images(2, (3, 112, 112)), (tmp_path / "tensors.npz", tmp_path / "i.npy")
    np.savez(files[0], **to_torch(ours, ""))
    np.save(files[1], images)
    words = [python, ROOT / "tests/support/torch_iresnet.py", *files]
    subprocess.run(words, check=True, timeout=250)
    assert_equal(np.load(files[1]), by_mxnet(ours, images))


class Tensor(SimpleNamespace):
    """As much of a tensor of PyTorch as is used."""

    def float(self) -> Tensor:
        return Tensor(array=self.array.astype(np.float32))

    def numpy(self) -> np.ndarray:
        return self.array


def load(file: Any, *, map_location: str, weights_only: bool) -> Any:
    assert weights_only and map_location == "cpu"
    return pickle.load(file)


def test_a_stand_in_for_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = SimpleNamespace(
        load=load, save=pickle.dump, from_numpy=lambda array: Tensor(array=array)
    )
    monkeypatch.setitem(sys.modules, "torch", stand_in)
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


def check_damaged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path.name} is no state dict .*; save it again") as e:
        read_state_dict(path)
    assert str(e.value).isprintable() and len(str(e.value)) < 500


def test_without_pytorch_its_files_are_one_line(prefix: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    path = tmp_path / "model.pt"
    path.write_bytes(b"cos\nsystem\n")
    for words in (f"--from-torch {path}", f"--model {prefix},0 --format torch"):
        with pytest.raises(ConfigError, match="needs PyTorch, .*: pip install torch, or use a fi"):
            command.main([*words.split(), "--output", str(path)])
    assert path.read_bytes() == b"cos\nsystem\n"


def header(dtype: str, end: int = 24, name: str = "a", shape: tuple[int, int] = (2, 3)) -> bytes:
    text = json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(24)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x80\x02}q\0.", (1 << 40).to_bytes(8, "little") + b"{}", header("F32")[:-1],
        header("F32", 1 << 50), header("F32", shape=(1 << 40, 1 << 40)), header("F128"),
        header("BF16", shape=(3, 4)), header("F9", name="\n\x1b[2J"),
    ],
)  # fmt: skip
def test_headers_that_lie_are_one_line(tmp_path: Path, content: bytes) -> None:
    check_damaged(tmp_path / "m.safetensors", content)


def test_files_that_are_missing_or_too_large(tmp_path: Path) -> None:
    for name in ("missing.safetensors", "m" * 300 + ".safetensors"):
        with pytest.raises(DataError, match="cannot be read: .*; give the file of a state dict"):
            read_state_dict(tmp_path / name)
    with (tmp_path / "large.safetensors").open("wb") as file:
        file.truncate((1 << 32) + 1)
    with pytest.raises(DataError, match="it has more than 4,294,967,296 bytes"):
        read_state_dict(tmp_path / "large.safetensors")


def test_other_state_dicts_are_refused(tensors: Tensors, tmp_path: Path) -> None:
    scaled, number = tensors["features.weight"] * 2, np.array(1, np.float32)
    lacking = {name: one for name, one in tensors.items() if name != "layer3.1.bn2.bias"}
    stages = {name: one for name, one in tensors.items() if not name.startswith("layer4.")}
    path = tmp_path / "other.safetensors"
    for changed, message in (
        ({"weight": number}, "is no iResNet of arcface_torch: "),
        (lacking, "'layer3.1.bn2.bias' is of one of the two alone"),
        (stages, "is no iResNet of arcface_torch: 'layer1' is"),
        ({**tensors, "fc.bias": np.ones(9, np.float32)}, "'pre_fc1_bias' has shape"),
        ({**tensors, "features.weight": scaled}, "has a trained 'features.weight'"),
        ({**tensors, "features.weight": number}, r"has shape \(8, 25088\), but an iResNet"),
        ({**tensors, f"layer{'1' * 5000}.0.conv1.weight": number}, "is no iResNet of arcface_t"),
        ({**tensors, "a" * 5000: number}, "torch: 'a{79} is of one of the two alone"),
    ):
        safetensors.numpy.save_file(changed, path)
        with pytest.raises(DataError, match=message):
            command.main(["--from-torch", str(path), "--output", str(tmp_path / "m")])
    assert not list(tmp_path.glob("m-*"))


def test_other_networks_are_refused(ours: Checkpoint) -> None:
    found = drawn(backbones.build("tiny", embedding_size=8), (3, 112, 112))
    with pytest.raises(DataError, match="net has no counterpart in arcface_torch"):
        to_torch(found, "net")
    graph = ours.graph
    for node in graph["nodes"]:
        if node["op"] == "_minus_scalar":
            node["attrs"]["scalar"] = "100"
    with pytest.raises(DataError, match="net does not subtract 127.5 from its pixels"):
        to_torch(ours._replace(symbol=from_json(graph)), "net")
