"""iResNets under arcface_torch's names and back, with and without PyTorch."""

from __future__ import annotations

import pickle
import subprocess
import textwrap
import zipfile
from pathlib import Path
from typing import Union

import numpy as np
import pytest

import backbones
from backbones.checkpoint import read_checkpoint
from backbones.graph.nodes import to_json
from backbones.model import Backbone
from evaluation.export import __main__ as command
from evaluation.export.torch_file import read_state_dict, write_state_dict
from evaluation.export.torch_names import NOTE, Constants, decode, table
from runtime.errors import ConfigError, DataError
from tests.support.onnx_networks import by_mxnet, drawn

ROOT = Path(__file__).resolve().parents[3]
# An environment with PyTorch, which is not this one: `PYTORCH=1 make bench` makes it.
WITH_TORCH = [
    folder / ".venv-bench" / "bin" / "python"
    for folder in (ROOT, (ROOT / ".venv").resolve().parent)
]
NO_NOTE = (NOTE, b"{}")
# Names of arcface_torch and ours, of each kind of layer.
NAMES = {
    "conv1.weight": "conv0_weight", "bn1.bias": "bn0_beta", "prelu.weight": "relu0_gamma",
    "layer2.0.bn1.running_mean": "stage2_unit1_bn1_moving_mean",
    "layer2.1.conv1.weight": "stage2_unit2_conv1_weight",
    "layer3.1.bn2.running_var": "stage3_unit2_bn2_moving_var",
    "layer4.0.prelu.weight": "stage4_unit1_relu1_gamma",
    "layer4.1.conv2.weight": "stage4_unit2_conv2_weight",
    "layer1.1.bn3.weight": "stage1_unit2_bn3_gamma",
    "layer3.0.downsample.0.weight": "stage3_unit1_conv1sc_weight",
    "layer2.0.downsample.1.running_var": "stage2_unit1_sc_moving_var",
    "bn2.bias": "bn1_beta", "fc.weight": "pre_fc1_weight", "fc.bias": "pre_fc1_bias",
    "features.bias": "fc1_beta",
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small iResNet with drawn weights."""
    prefix = tmp_path_factory.mktemp("ours") / "model"
    found = drawn(backbones.build("r18", embedding_size=8), (3, 112, 112))
    found.weights["fc1_gamma"][:] = 1
    found.network().export(prefix)
    return prefix


@pytest.fixture(scope="module")
def exported(checkpoint: Path) -> Path:
    command.main(["--model", f"{checkpoint},0", "--format", "torch"])
    return checkpoint.with_name("model.pt")


@pytest.mark.thorough
def test_to_torch_names_and_back_are_equal_bytes(
    checkpoint: Path, exported: Path, tmp_path: Path
) -> None:
    command.main(["--from-torch", str(exported), "--output", str(tmp_path / "back")])
    for ending in ("0000.params", "symbol.json"):
        again = tmp_path / f"back-{ending}"
        assert again.read_bytes() == checkpoint.with_name(f"model-{ending}").read_bytes(), ending
    command.main(["--model", f"{tmp_path / 'back'},0", "--format", "torch"])
    assert (tmp_path / "back.pt").read_bytes() == exported.read_bytes()


def test_names_are_those_of_arcface_torch_in_its_order(checkpoint: Path, exported: Path) -> None:
    tensors, _ = read_state_dict(exported, NOTE)
    names = list(tensors)
    assert names[:7] == [
        *("conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"),
        *("bn1.num_batches_tracked", "prelu.weight"),
    ]
    assert names[-7:] == [
        *("fc.weight", "fc.bias", "features.weight", "features.bias", "features.running_mean"),
        *("features.running_var", "features.num_batches_tracked"),
    ]
    assert "layer2.1.downsample.0.weight" not in names
    weights = read_checkpoint(checkpoint, 0).weights
    for there, here in NAMES.items():
        np.testing.assert_array_equal(tensors[there], weights[here], there)
    assert tensors["features.weight"].tolist() == [1.0] * 8
    assert tensors["bn1.num_batches_tracked"].shape == ()
    # The tensors of iresnet100: five of each norm, one of a convolution or PReLU, two of fc.
    assert len(table((3, 13, 30, 3))) == 1 + 5 + 1 + 49 * (5 * 3 + 3) + 4 * 6 + 5 + 2 + 5


def test_what_others_saved_has_arcface_torchs_constants(exported: Path, tmp_path: Path) -> None:
    """As torch.nn.parallel writes it, and without the counts."""
    tensors, note = read_state_dict(exported, NOTE)
    assert decode(note, "") == Constants(0.0078125, 2e-5)
    parallel = {f"module.{name}": one for name, one in tensors.items() if "tracked" not in name}
    path = saved(tmp_path, parallel, ("nothing", b""))
    command.main(["--from-torch", str(path), "--output", str(tmp_path / "m")])
    nodes = to_json(read_checkpoint(tmp_path / "m", 0).symbol)["nodes"]
    scales = [node["attrs"]["scalar"] for node in nodes if node["op"] == "_mul_scalar"]
    assert [float(scale) for scale in scales] == [1 / 127.5]
    epsilons = {node["attrs"]["eps"] for node in nodes if node["op"] == "BatchNorm"}
    assert {float(one) for one in epsilons} == {1e-5}
    Backbone.load(tmp_path / "m")


# arcface_torch's structure, written again: layers by their names in the state dict.
NETWORK = """
    import sys
    import numpy as np, torch
    from torch import nn

    EPSILON = float(sys.argv[3])

    class Block(nn.Module):
        def __init__(self, given, made, stride):
            super().__init__()
            self.bn1 = nn.BatchNorm2d(given, EPSILON)
            self.conv1 = nn.Conv2d(given, made, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(made, EPSILON)
            self.prelu = nn.PReLU(made)
            self.conv2 = nn.Conv2d(made, made, 3, stride, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(made, EPSILON)
            self.downsample = None
            if stride > 1:
                project = nn.Conv2d(given, made, 1, stride, bias=False)
                self.downsample = nn.Sequential(project, nn.BatchNorm2d(made, EPSILON))

        def forward(self, x):
            y = self.bn3(self.conv2(self.prelu(self.bn2(self.conv1(self.bn1(x))))))
            return y + (x if self.downsample is None else self.downsample(x))

    class Network(nn.Module):
        def __init__(self, units, size):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
            self.bn1, self.prelu = nn.BatchNorm2d(64, EPSILON), nn.PReLU(64)
            given = 64
            for stage, (count, made) in enumerate(zip(units, (64, 128, 256, 512)), 1):
                blocks = [Block(given, made, 2)] + [Block(made, made, 1) for _ in range(count - 1)]
                setattr(self, f"layer{stage}", nn.Sequential(*blocks))
                given = made
            self.bn2 = nn.BatchNorm2d(512, EPSILON)
            self.fc = nn.Linear(512 * 49, size)
            self.features = nn.BatchNorm1d(size, EPSILON)

        def forward(self, x):
            x = self.prelu(self.bn1(self.conv1(x)))
            for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
                x = stage(x)
            return self.features(self.fc(torch.flatten(self.bn2(x), 1)))

    state = torch.load(sys.argv[1], weights_only=True)
    network = Network((2, 2, 2, 2), 8).eval()
    # Every name, in this order.
    assert list(network.state_dict()) == list(state)
    print(network.load_state_dict(state, strict=True))
    images = torch.from_numpy(np.load(sys.argv[2])).float()
    with torch.no_grad():
        np.save(sys.argv[2], network((images - 127.5) * float(sys.argv[4])).numpy())
    torch.save(network.state_dict(), sys.argv[1] + ".again")
    # As arcface_torch's checkpoint_gpu_0.pt.
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    network.train()(images[:2]).sum().backward()
    optimizer.step()
    whole = {"epoch": 1, "global_step": 70_000, "state_dict_backbone": state}
    states = {"state_optimizer": optimizer.state_dict(), "state_lr": schedule.state_dict()}
    torch.save({**whole, **states, "state_dict_softmax_fc": None}, sys.argv[1] + ".whole")
"""


def test_pytorch_computes_the_same_and_its_own_file_is_read(
    exported: Path, checkpoint: Path, tmp_path: Path
) -> None:
    python = next((path for path in WITH_TORCH if path.exists()), None)
    if python is None:
        pytest.skip("PyTorch is not installed: PYTORCH=1 make bench installs it")
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 112, 112), dtype=np.uint8)
    path = tmp_path / "images.npy"
    np.save(path, images)
    program = tmp_path / "network.py"
    program.write_text(textwrap.dedent(NETWORK))
    words = [str(python), str(program), str(exported), str(path), "2e-5", "0.0078125"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=250)
    assert result.returncode == 0 and "All keys matched" in result.stdout, result.stderr
    expected = by_mxnet(read_checkpoint(checkpoint, 0), images)
    found = np.load(path)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    # What PyTorch itself saves is read, too, with the versions of its modules.
    again, note = read_state_dict(exported.with_name("model.pt.again"), NOTE)
    tensors, _ = read_state_dict(exported, NOTE)
    whole, _ = read_state_dict(exported.with_name("model.pt.whole"), NOTE)
    assert note is None and list(again) == list(whole) == list(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(again[name], tensor)
        np.testing.assert_array_equal(whole[name], tensor)


@pytest.mark.thorough
def test_other_networks_are_refused(tmp_path: Path) -> None:
    for network in ("tiny", "r18-se"):
        symbol = backbones.build(network, embedding_size=8)
        drawn(symbol, (3, 112, 112)).network().export(tmp_path / network)
        with pytest.raises(DataError, match="has no counterpart in arcface_torch"):
            command.main(["--model", f"{tmp_path / network},0", "--format", "torch"])
    assert not list(tmp_path.glob("*.pt"))
    with pytest.raises(ConfigError, match="--from-torch needs --output PREFIX"):
        command.main(["--from-torch", "model.pt"])


def saved(folder: Path, tensors: dict[str, np.ndarray], note: tuple[str, bytes] = NO_NOTE) -> Path:
    path = folder / "other.pt"
    with path.open("wb") as file:
        write_state_dict(file, tensors, note)
    return path


def test_other_state_dicts_are_refused(exported: Path, tmp_path: Path) -> None:
    tensors, constants = read_state_dict(exported, NOTE)
    assert constants is not None
    scaled, number = tensors["features.weight"] * 2, np.array(1, np.float32)
    lacking = {name: one for name, one in tensors.items() if name != "layer3.1.bn2.bias"}
    for changed, message in (
        ({"weight": number}, "is no iResNet of arcface_torch: "),
        (lacking, "'layer3.1.bn2.bias' is of one of the two alone"),
        ({**tensors, "fc.bias": np.ones(9, np.float32)}, "'pre_fc1_bias' has shape"),
        ({**tensors, "features.weight": scaled}, "has a trained 'features.weight'"),
        ({**tensors, "features.weight": number}, r"has shape \(8, 25088\), but an iResNet"),
        ({**tensors, f"layer{'1' * 5000}.0.conv1.weight": number}, "is no iResNet of arcface_t"),
        ({**tensors, "a" * 5000: number}, "torch: 'a{79} is of one of the two alone"),
    ):
        path = saved(tmp_path, changed, (NOTE, constants))
        with pytest.raises(DataError, match=message):
            command.main(["--from-torch", str(path), "--output", str(tmp_path / "m")])
    assert not list(tmp_path.glob("m-*"))
    huge = b'{"pixel_scale": 1%s, "epsilon": 1e-5}' % (b"0" * 400)
    zero, large = b'{"pixel_scale": 0, "epsilon": 1e-5}', b'{"pixel_scale": 1, "epsilon": 1}'
    for wrong in (b"{", b"{}", b"[]", zero, large, huge):
        with pytest.raises(DataError, match="has a damaged mxnet.json; export it again"):
            decode(wrong, "m.pt")


def program_of(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read("archive/data.pkl")


def repacked(path: Path, program: bytes, kind: int = zipfile.ZIP_STORED) -> None:
    """Write another pickle into a file."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in {**entries, "archive/data.pkl": program}.items():
            archive.writestr(name, content)


def exchanged(content: bytes, before: bytes, after: bytes) -> bytes:
    assert content.count(before) == 1, before
    return content.replace(before, after)


class Attack:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("taken over",))


def number(value: int) -> bytes:
    return b"J" + value.to_bytes(4, "little")


SHAPE = b"(" + number(2) + number(3)
# 69,000 of one hash took two minutes: each is compared with all before it.
KEYS = (b"\x8a\x0a" + (n * (2**61 - 1)).to_bytes(10, "little") + b"K\x01" for n in range(1, 70_000))


# Another pickle, or what is exchanged in it, and what is said.
DAMAGED: list[tuple[Union[bytes, tuple[bytes, bytes]], str]] = [
    (pickle.dumps(Attack(), 2), "it wants to run"),
    (pickle.dumps({"a": Attack()}, 4), "it holds a"),
    (b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.", "it wants to run 'os.system'"),
    (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", "a tensor without its place"),
    (pickle.dumps({"a": 1}, 2), "'a' is no tensor"),
    (pickle.dumps([1, 2], 2), "it has no tensors by name"),
    (b"", "it is damaged"),
    (b".", "it is damaged"),
    (b"\x80\x02}", "it is damaged"),
    (b"\x80\x02}(X\x01\x00\x00\x00aN", "it is damaged"),
    (b"\x80\x02}(" + b"".join(KEYS) + b"u.", "keys other than text and small integers"),
    (b"\x80\x02" + b"]" * (4 << 20), "'archive/data.pkl' is compressed, or larger than it can"),
    ((number(6), number(1 << 30)), "a storage of another size"),
    ((SHAPE, b"(" + number(1 << 20) + number(3)), "a tensor that is larger than its storage"),
    ((SHAPE, b"(" + number(3) + number(3)), "a tensor that is larger than its storage"),
    ((b"K\x00(", b"K\x01("), "a tensor that is larger than its storage"),
    ((b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x007"), "it lacks 'archive/data/7'"),
    ((b"FloatStorage", b"Float8Storag"), "it wants to run 'torch.Float8Storag"),
]


def test_a_pickle_runs_nothing_and_is_compared_with_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for change, message in DAMAGED:
        path = saved(tmp_path, {"a": np.arange(6, dtype=np.float32).reshape(2, 3)})
        other = change if isinstance(change, bytes) else exchanged(program_of(path), *change)
        repacked(path, other)
        with pytest.raises(DataError, match=f"is no state dict of PyTorch: .*{message}.*; save it"):
            read_state_dict(path, NOTE)
    assert "taken over" not in capfd.readouterr().out


def test_files_that_are_no_archives(tmp_path: Path) -> None:
    for name in ("missing.pt", "m" * 300):
        with pytest.raises(DataError, match="does not exist; give the .pt file"):
            read_state_dict(tmp_path / name, NOTE)
    path = saved(tmp_path, {"a": np.ones(3, np.float32)})
    for content in (b"", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", path.read_bytes()[:-30]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read .*; save it with torch.save"):
            read_state_dict(path, NOTE)
    saved(tmp_path, {"a": np.ones(3, np.float32)})
    repacked(path, program_of(path), zipfile.ZIP_DEFLATED)
    with pytest.raises(DataError, match="is compressed, or larger"):
        read_state_dict(path, NOTE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("header_offset", (1 << 64) - 1), ("header_offset", 1 << 40),
        ("compress_size", 0x7FFFFFFF), ("compress_size", 1),
    ],
)  # fmt: skip
def test_the_directory_is_compared_with_the_file(tmp_path: Path, field: str, value: int) -> None:
    """zipfile would raise a ValueError, or allocate two gigabytes."""
    path = saved(tmp_path, {"a": np.ones(3, np.float32)})
    with zipfile.ZipFile(path, "a") as archive:
        setattr(archive.getinfo("archive/data/0"), field, value)
        # So that the directory is written again.
        archive.comment = b"changed"
    with pytest.raises(DataError, match="'archive/data/0' has a size or a place that the file"):
        read_state_dict(path, NOTE)


def test_every_type_and_shape(tmp_path: Path) -> None:
    tensors: dict[str, np.ndarray] = {
        "half": np.array([1.5, -2], np.float16),
        "double": np.arange(24, dtype=np.float64).reshape(2, 3, 4),
        "count": np.array(7, np.int64),
    }
    found, note = read_state_dict(saved(tmp_path, tensors, ("other", b"")), NOTE)
    assert note is None and list(found) == list(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape


def test_tensors_may_be_parts_of_one_storage_but_no_more_than_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path, {"a": np.arange(8, dtype=np.float32), "b": np.zeros(3, np.float32)})
    # b becomes the first three numbers of a.
    key, count = b"X\x01\0\0\0", b"J\x03\0\0\0"
    program = exchanged(program_of(path), key + b"1", key + b"0")
    assert count in program
    repacked(path, program.replace(count, b"J\x08\0\0\0", 1))
    found, _ = read_state_dict(path, NOTE)
    assert found["a"].tolist() == [*range(8)] and found["b"].tolist() == [0, 1, 2]
    # Ten tensors of the same bytes, in an archive whose directory says that it is a gigabyte.
    saved(tmp_path, {f"t{n}": np.ones(1 << 14, np.float32) for n in range(10)})
    with zipfile.ZipFile(path) as archive:
        program, content = archive.read("archive/data.pkl"), archive.read("archive/data/0")
    for n in range(1, 10):
        program = program.replace(key + b"%d" % n, key + b"0", 1)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/data/0", content)
        archive.writestr("archive/data/1", b"")
        archive.getinfo("archive/data/1").file_size = 1 << 30
    with pytest.raises(DataError, match="tensors that are larger than the file"):
        read_state_dict(path, NOTE)


def test_numbered_parameters_of_an_optimizer_are_passed_over(tmp_path: Path) -> None:
    """As in arcface_torch's checkpoint_gpu_0.pt."""
    path = saved(tmp_path, {"a": np.ones(3, np.float32)})
    words = (b"state_dict_backbone", b"state_optimizer")
    names = [b"X" + len(word).to_bytes(4, "little") + word for word in words]
    behind = names[1] + b"}(K\0NK\x01Nu" + b"u."
    repacked(path, b"\x80\x02}(" + names[0] + program_of(path)[2:-1] + behind)
    assert read_state_dict(path, NOTE)[0]["a"].tolist() == [1, 1, 1]
