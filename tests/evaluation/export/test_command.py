"""The command: files that are written, and refusals in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

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
from evaluation.network import OnnxNetwork
from runtime.errors import DataError
from tests.evaluation.support import check_refusal, export_network
from tests.support.onnx_networks import drawn

WORDS = ["--model", "model,0"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_network(tmp_path_factory.mktemp("checkpoint") / "model").parent


@pytest.fixture(autouse=True)
def _copy(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)


def test_model_and_card(capsys: pytest.CaptureFixture[str]) -> None:
    config = {"dataset": "faces", "rec": ["/home/somebody/faces"], "num_classes": 127, "lr": 0.1}
    Path("config.json").write_text(json.dumps(config))
    verified = [
        json.dumps({"update": update, "target": "lfw", "accuracy": accuracy})
        for update, accuracy in ((100, 0.91), (200, 0.97), (300, 0.96))
    ]
    Path("metrics.jsonl").write_text("\n".join(['{"update": 20, "loss": 40}', *verified, ""]))
    command.main(WORDS)
    images = np.random.default_rng(1).integers(0, 256, (3, 3, 112, 112), dtype=np.uint8)
    expected = Backbone.load("model").extract(images)
    found = OnnxNetwork(Path("model.onnx").read_bytes()).extract(images)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    card = Path("model.md").read_text()
    for said in (
        *("num_classes | 127", "rec | faces", "lr | 0.1", "lfw | 0.9600 | 300 | 0.9700 | 200"),
        *("embedding | 8", f"parameters | {backbones.parameter_count('tiny', 8):,}"),
    ):
        assert f"| {said} |" in card
    assert "somebody" not in card
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("model.onnx: 3 x 112 x 112 to fc1_output, float32, opset 13; ")
    assert second == "model.md: the model card"


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
    assert "| classes | 10 |" in card and "any x 1 x 28 x 28" in card
    assert OnnxNetwork(Path("model.onnx").read_bytes()).image_shape == (1, 28, 28)
    check_refusal(command.main, WORDS, "has shape .*give the graph and the image size")


def test_a_wrong_translation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layers._ACTIVATIONS, "relu", "Abs")
    message = "is not written: ONNX Runtime's output differs from MXN"
    check_refusal(command.main, WORDS, message)
    assert not Path("model.onnx").exists() and not Path("model.md").exists()
    command.main([*WORDS, "--limit", "100"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model model", "'model' is not PREFIX,EPOCH"),
        ("model.pt --simplify True", "^--simplify is not an option here: leave it out"),
        ("--model m,0 --format torch --dtype float16", "--dtype: --format torch"),
        ("--model m,0 --format torch --batch-size 1", "--batch-size: --format t"),
        ("--from-torch model.pt", "--from-torch needs --output PREFIX"),
        ("--from-torch a.pt --output x --format onnx", "--format: --from-torch does not obey it"),
        ("--from-torch a.pt --output x --image-size 9 9", "--image-size: --from-torch does not"),
        ("--from-torch a.pt --output x --limit 1", "--limit: --from-torch does not obey it"),
        ("--model model,7", "does not exist"),
        ("--model model,0 --output net.md", "net.md is the name of the model card"),
        ("--model model,0 --output model-0000.params/x.onnx",
         "cannot be written: .*; choose another folder with --o"),
        *(
            (f"--model model,0 --format {form} --output {name}", f"{name} would replace what this")
            for name, form in (
                *(("model-0000.params", "onnx"), ("model-0000.params", "torch")),
                ("model-symbol.json", "onnx"),
            )
        ),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(words: str, message: str) -> None:
    before = {path: path.read_bytes() for path in Path().iterdir()}
    check_refusal(command.main, words.split(), message)
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_a_damaged_file_is_named() -> None:
    Path("config.json").write_text("{")
    message = "config.json is damaged, and what is written from it wo"
    with pytest.raises(DataError, match=message):
        command.main(WORDS)


def means(images: np.ndarray) -> np.ndarray:
    return images.mean(axis=(2, 3)).astype(np.float32)


def test_the_difference_is_relative_to_the_largest_element_of_its_image() -> None:
    images = np.zeros((4, 3, 2, 2), np.uint8)
    images[:, 0], images[1, 0], images[:, 2] = 10, 200, 5

    def other(batch: np.ndarray) -> np.ndarray:
        # Of the image with 200: 2 / 200; of the others 0.5 / 10.
        return means(batch) + np.where(batch[:, :1, 0, 0] == 200, [0, 2, 0], [0, 0.5, 0])

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


def test_images_are_drawn_the_same_on_every_call() -> None:
    images = draw_images(3, (1, 28, 30))
    assert images.shape == (3, 1, 28, 30) and images.dtype == np.uint8
    np.testing.assert_array_equal(images, draw_images(3, (1, 28, 30)))
    assert np.abs(images[0].astype(int) - images[1]).mean() > 30
