"""Networks of checkpoints and ONNX files, every command that uses one, and two images compared."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from backbones.model import Backbone
from data.align.similarity import TEMPLATE
from data.verification.bin_file import read_bin, write_bin
from evaluation import compare, embed
from evaluation.clean import __main__ as clean
from evaluation.export import __main__ as export
from evaluation.features import FaceNetwork, normalized
from evaluation.ijb import __main__ as ijb
from evaluation.network import OnnxNetwork, normalizes_pixels, open_network
from evaluation.verification import __main__ as verification
from evaluation.verification import embed_pairs
from evaluation.verification.curves import pairs_of, threshold_for
from runtime.mxnet import mx
from runtime.untrusted.onnx_model import import_onnx
from runtime.untrusted.parameter_file import read_parameters, write_parameters
from tests.evaluation.support import check_refusal, export_network, noise, png
from tests.support.ijb_set import write_set
from tests.support.launch import ROOT
from tests.support.sets import assert_refused, pack_set

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 4), dtype=np.uint8)
MEANS = IMAGES.mean(axis=(2, 3))
SCALED = (MEANS - 127.5) / 127.5


def model(
    end: str = "Flatten (z)", shape: str = "b, 3, 4, 4", kind: str = "float", inputs: str = "x"
) -> Any:
    """The mean of each map of x, z [b, 3, 1, 1], and an operator on it; s is the shape [1, -1]."""
    given = ", ".join(f"float[{shape}] {name}" for name in inputs)
    body = f"<int64[2] s = {{1, -1}}> {{ z = GlobalAveragePool (x) out = {end} }}"
    text = f'<ir_version: 7, opset_import: ["": 13]> g ({given}) => ({kind} out) {body}'
    made = import_onnx().parser.parse_model(text)
    if kind == "float":
        made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def opened(folder: Path, content: bytes) -> FaceNetwork:
    (path := folder / "model.onnx").write_bytes(content)
    given = {"dtype": "float32", "batch_size": 2, "no_flip": False}
    return open_network(Namespace(model=path, image_size=(4, 4), **given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["ReduceMean <keepdims=0> (z)"], "fails on 2 images of 4 x 4"),
        (["ReduceMean <axes=[0, 2, 3], keepdims=0> (z)"], r"gives \[.\] for two images"),
        (["Reshape (z, s)"], r"gives \[1, 6\] for two images"),
        (["Identity (z)"], r"gives \[2, 3, 1, 1\] for two images"),
        (["SequenceConstruct (z)", "b, 3, 4, 4", "seq(float)"], r"gives \[1, 2, 3, 1, 1\] for two"),
        (["Flatten (z)", "8192, 3, 4, 4"], "takes 8,192 images at a time, more than 4,096; export"),
        (["Flatten (z)", "b, 3, 4, 4", "float", "xy"], "has 2 inputs and 1 outputs; give a"),
        (None, "is refused as an ONNX model: "),
    ],
)
def test_other_models_are_refused_in_one_line(tmp_path: Path, given, message: str) -> None:
    content = model(*given).SerializeToString() if given else b"no model"
    assert_refused(f"model.onnx.*{message}", opened, tmp_path, content)


def test_a_row_per_batch_of_one_is_a_row_per_image(tmp_path: Path) -> None:
    network = opened(tmp_path, model("Reshape (z, s)", "1, 3, 4, 4").SerializeToString())
    np.testing.assert_allclose(network.extract(IMAGES), SCALED, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", ["b", 2, 8])
def test_any_number_of_images(batch: Any) -> None:
    network = OnnxNetwork(model(shape=f"{batch}, 3, 4, 4").SerializeToString())
    assert network.image_shape == (3, 4, 4)
    found = network.extract(IMAGES)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, MEANS, rtol=1e-6)


@pytest.mark.parametrize(
    ("names", "normalizes"),
    [
        (["_minusscalar0", "_mulscalar0"], True), (["Sub_0", "Div_1"], True),
        (["Sub_0", *"123456", "Mul_7"], True), (["Sub_0", *"1234567", "Mul_8"], False),
        (["Sub_0", "Conv_1"], False), (["Conv_0", "Mul_1", "Div_2"], False),
    ],
)  # fmt: skip
def test_a_difference_and_a_product_or_quotient_normalize(tmp_path, names, normalizes) -> None:
    """Other pixels are scaled outside, as by InsightFace."""
    made = model(shape="b, 3, h, w")
    for name in reversed(names):
        node = import_onnx().helper.make_node("Identity", ["x"], [f"unused {name}"], name)
        made.graph.node.insert(0, node)
    content = made.SerializeToString()
    assert normalizes_pixels(content) == normalizes
    expected = MEANS if normalizes else SCALED
    found = opened(tmp_path, content).extract(IMAGES)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


SIDE = 112
COMMANDS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "verification": (verification.main, "--target pairs.bin"),
    "compare": (compare.main, "0.png 1.png --threshold 0.3"),
    "compare with a set": (compare.main, "1.png 2.png --target pairs.bin --far=.2"),
    "embed": (embed.main, "1.png 0.png --out rows"),
    "ijb": (ijb.main, "IJBC --out {out}"),
    "clean": (clean.main, "faces"),
    "export": (export.main, "--output made.onnx"),
    "export to torch": (export.main, "--format torch --output made.safetensors"),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, sets of them, and three networks.

    ``huge`` has finite weights whose products are not finite, ``maps`` ends with a Convolution.
    """
    folder = tmp_path_factory.mktemp("inputs")
    images = [png(noise(number, SIDE) // 4 * 3) for number in range(24)]
    for number, image in enumerate(images[:3]):
        (folder / f"{number}.png").write_bytes(image)
    write_bin(folder / "pairs.bin", images, [pair % 3 == 1 for pair in range(12)])
    pack_set(folder / "faces", images, np.arange(24) // 4, (SIDE, SIDE))
    write_set(folder / "IJBC", images=True)
    network = mx.sym.load(f"{export_network(folder / 'm')}-symbol.json")
    found = read_parameters(folder / "m-0000.params")
    x = mx.sym.var("data")
    means = mx.sym.Pooling(x, global_pool=True, kernel=(1, 1), pool_type="avg")
    for name, symbol, key, value in (
        ("nan", network, "arg:stage2_conv0_weight", np.nan),
        # Before it an activation makes numbers of what is none.
        ("huge", network, "arg:pre_fc1_weight", 1e38),
        ("maps", mx.sym.Convolution(means, kernel=(1, 1), num_filter=8, name="fc1"), "none", 0),
    ):
        changed = {one: np.full_like(found[one], value) for one in found if one.startswith(key)}
        with (folder / f"{name}-0000.params").open("wb") as file:
            write_parameters(file, {**found, **changed})
        symbol.save(f"{folder}/{name}-symbol.json")
    return folder


COMPUTING = "verification, compare, embed, clean, ijb"
NOT_FINITE = "the network gives embeddings that are not finite"
MISTAKES = [
    ("nan", "nan-0000.params: 'stage2_conv0_weight' has values", "clean, export to torch"),
    ("maps", r"maps-symbol.json gives \[2, 8, 1, 1\] for two images", "embed, export, ijb"),
    ("m" * 300, "-symbol.json (does not exist|cannot be read: File name too)", "compare"),
    ("huge", NOT_FINITE, f"{COMPUTING}, compare with a set, export"),
]


@pytest.mark.parametrize(
    ("model", "message", "name"),
    [(*mistake, name) for *mistake, names in MISTAKES for name in names.split(", ")],
)
def test_without_finite_rows(inputs, model, message, name, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(inputs)
    main, words = COMMANDS[name]
    words = f"--model {model},0 {words.format(out=tmp_path / 'out')}"
    check_refusal(main, words.split(), message)
    assert "accuracy" not in capsys.readouterr().out
    assert not list(inputs.glob("rows*")) and not list(inputs.glob("made*"))


def test_nothing_before_imports_mxnet_and_nothing_else_onnx() -> None:
    names = ("verification", "ijb", "export")
    programs = ["evaluation.embed", *(f"evaluation.{name}.__main__" for name in names)]
    code = (
        f"import sys, {', '.join(programs)}; "
        "assert not {'mxnet', 'onnx', 'onnxruntime', 'torch'} & sys.modules.keys(); "
        "import train, classify, backbones.model, training.validation; "
        "assert not {'onnx', 'onnxruntime', 'torch'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, check=True, timeout=120)


def draw(number: int, side: int = 32) -> np.ndarray:
    return cv2.resize(noise(number, 4), (side, side))


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    images = [png(draw(number)) for number in range(24)]
    write_bin("pairs.bin", images, [pair % 3 == 0 for pair in range(12)])
    write_bin("alike.bin", images, [True] * 12)
    for name, image in zip("ab", images):
        Path(f"{name}.png").write_bytes(image)
    export_network(Path("m"), 32)
    return ["a.png", "b.png", "--model", "m,0", "--image-size", "32", "32"]


def test_an_image_with_itself_and_with_another(words, capsys) -> None:
    compare.main(["a.png", "a.png", *words[2:], "--threshold", "0.9999"])
    assert capsys.readouterr().out.splitlines() == [
        "cosine 1.0000: same",
        "threshold 0.9999, as given; --target FILE.bin measures its FAR",
    ]
    images = np.stack([draw(n).transpose(2, 0, 1) for n in range(2)])
    extract = Backbone.load("m", image_size=(32, 32)).extract
    first, second = normalized(extract(images) + extract(images[..., ::-1].copy()))
    cosine = float(first @ second)
    for threshold, answer in ((cosine - 0.01, "same"), (cosine + 0.01, "not the same")):
        compare.main([*words, "--threshold", f"{threshold:.4f}"])
        found, _, said = capsys.readouterr().out.splitlines()[0].partition(": ")
        assert float(found.split()[1]) == pytest.approx(cosine, abs=2e-3) and said == answer


def test_a_threshold_from_a_set_and_its_rate(words, capsys) -> None:
    def second_line(*more: str) -> str:
        compare.main([*words, "--target", "pairs.bin", *more])
        return capsys.readouterr().out.splitlines()[1]

    pairs, extract = read_bin("pairs.bin"), Backbone.load("m", image_size=(32, 32)).extract
    embeddings, _ = embed_pairs(FaceNetwork(extract, (32, 32)), pairs)
    expected = threshold_for(pairs_of(embeddings, pairs.same).cosines[~pairs.same], 0.25)
    line = second_line("--far", "0.25")
    threshold = float(line.split()[1].rstrip(","))
    assert threshold == pytest.approx(expected, abs=2e-3)
    assert line.endswith("FAR 0.25: it accepts 2 of the 8 pairs of two people in pairs")
    assert second_line("--threshold", line.split()[1].rstrip(",")) == line
    assert "accepts 8 of the 8 pairs" in second_line("--threshold", "-1")


def test_faces_are_cut_out(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.png").write_bytes(png(draw(0, 160)))
    export_network(Path("m"))
    Path("points.txt").write_text(f"a.png {' '.join(map(str, TEMPLATE.ravel()))}\n")
    line = ["a.png", "a.png", "--model", "m,0", "--threshold", "0.5"]
    compare.main([*line, "--align", "points.txt"])
    assert capsys.readouterr().out.startswith("cosine 1.0000: same")
    check_refusal(compare.main, line, "a.png has 160 x 160 pixels .*; cut the faces out with")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "nothing says which cosine is enough: give --threshold"),
        ("--far 0.1 --threshold 0", "--far takes the threshold from --ta"),
        ("--far 1 --target pairs.bin", "--far: '1' is no share"),
        ("--target pairs.bin", "pairs has 8 pairs of two people, of which 0.001"),
        ("--target alike.bin", "'alike' has no pair of two people; take another"),
    ],
)
def test_mistakes_are_one_line(words, options: str, message: str) -> None:
    check_refusal(compare.main, [*words, *options.split()], message)
