"""The benchmark of learning reads what runs wrote, and both sides get the same recipe."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks import learning, worker
from benchmarks.learning import Epoch
from runtime.errors import ConfigError
from training.config import images

HAS_PYTORCH = worker.pytorch_python() is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-10 as folders of images, 13 of each class to train on and two to validate on."""
    root = tmp_path_factory.mktemp("cifar")
    generator = np.random.default_rng(2)
    for part, count in (("train", 13), ("test", 2)):
        for number in range(10):
            (root / part / f"class{number}").mkdir(parents=True)
            for image in range(count):
                pixels = generator.integers(256, size=(32, 32, 3), dtype=np.uint8)
                cv2.imwrite(str(root / part / f"class{number}" / f"{image}.png"), pixels)
    return root


def write_lines(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def validated(update: int, training: float | None, correct: int) -> dict:
    return {
        "update": update,
        "target": "validation",
        "training_accuracy": training,
        "correct": correct,
        "total": 100,
    }


def test_an_epoch_that_was_resumed_counts_once(tmp_path) -> None:
    metrics = write_lines(
        tmp_path / "metrics.jsonl",
        {"update": 2, "images_per_second": 10.0},
        {"update": 4, "images_per_second": 30.0},
        {"update": 6, "images_per_second": 20.0},
        validated(7, 0.25, 30),
        {"update": 8, "images_per_second": 50.0},
        validated(14, 0.5, 40),
        # Again, from the checkpoint of update 7.
        {"update": 8, "images_per_second": 60.0},
        validated(14, 0.75, 60),
        # And once more behind the end.
        validated(14, None, 60),
    )
    assert learning.read(metrics) == [Epoch(0.25, 30, 100, 20.0), Epoch(0.75, 60, 100, 60.0)]


def test_the_table(tmp_path) -> None:
    curves: learning.Curves = {
        "A": ([Epoch(0.25, 3000, 10_000, 20.0), Epoch(0.5, 4000, 10_000, 21.0)], [])
    }
    lines = learning.table(curves).splitlines()[2:]
    assert lines == [
        "| A | 1 | 0.2500 | 0.3000 (3,000 of 10,000) | 20.0 |",
        "| A | 2 | 0.5000 | 0.4000 (4,000 of 10,000) | 21.0 |",
    ]
    learning.draw(curves, tmp_path / "curves.svg")
    assert "accuracy on the validation images" in (tmp_path / "curves.svg").read_text()


def test_pytorch_gets_the_recipe(folder, tmp_path) -> None:
    config = images.resolve(
        {"dataset": "cifar10", "data_dir": str(folder), "model": "resnet20", "epochs": 4}
    )
    learning.prepare(config, 2, tmp_path)
    recipe = json.loads((tmp_path / "recipe.json").read_text())
    # 130 images: one batch of 128 in each of 4 epochs, along a cosine.
    expected = [0.1 * (1 + np.cos(np.pi * update / 4)) / 2 for update in range(4)]
    assert recipe["lr"] == pytest.approx(expected)
    assert (recipe["epochs"], recipe["batch_size"]) == (2, 128)
    assert (recipe["momentum"], recipe["wd"]) == (0.9, 5e-4)
    pixels, labels = (np.load(tmp_path / f"training_{name}.npy") for name in ("images", "labels"))
    assert pixels.shape == (130, 3, 32, 32) and pixels.dtype == np.uint8
    assert np.bincount(labels).tolist() == [13] * 10
    image = cv2.imread(str(folder / "train" / "class0" / "0.png"))[..., ::-1]
    assert any(np.array_equal(one.transpose(1, 2, 0), image) for one in pixels[labels == 0])


@pytest.mark.parametrize("model", ["resnet17:3", "resnet20:none"])
def test_wrong_models_are_explained(model) -> None:
    with pytest.raises(ConfigError, match=r"resnet17|none"):
        learning.main(["--data-dir", "nowhere", "--model", model])


def test_both_learn_and_a_second_call_trains_nothing(folder, tmp_path, capsys) -> None:
    words = ["--data-dir", str(folder), "--model", "resnet20:2", "--models-root", str(tmp_path)]
    learning.main([*words, "--plot", str(tmp_path / "curves.svg"), "--json", f"{tmp_path}/rows"])
    printed = capsys.readouterr().out
    names = [f"resnet20, epoch {number}" for number in (1, 2)]
    rows = json.loads((tmp_path / "rows").read_text())
    assert [row["case"] for row in rows] == names + names[:1] * HAS_PYTORCH
    if HAS_PYTORCH:
        assert "| resnet20 in PyTorch | 1 |" in printed
    metrics = tmp_path / "resnet20" / "metrics.jsonl"
    written = metrics.read_text()
    learning.main(words)
    assert capsys.readouterr().out.splitlines()[-1] == printed.splitlines()[-1]
    assert metrics.read_text() == written
