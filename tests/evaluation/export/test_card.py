from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.export.card import weights_hash, write_card
from runtime.errors import DataError

WEIGHTS = {"b": np.ones(2, np.float32), "a": np.zeros((1, 2), np.float32)}


def card_of(folder: Path, **files: str) -> str:
    """The card of a network in a folder with ``config.json`` and ``metrics.jsonl``, or without."""
    for name, content in files.items():
        (folder / {"config": "config.json", "metrics": "metrics.jsonl"}[name]).write_text(content)
    return write_card(Path("net.onnx"), bytes(1234), WEIGHTS, [("input", "x | y")], folder)


def test_without_a_run_the_card_says_what_is_not_known(tmp_path: Path) -> None:
    card = card_of(tmp_path)
    assert card.startswith("# net\n") and card.count("Not known") == 2
    # A line in a cell would end it.
    for said in ("| `net.onnx` | 1,234 | `ad47fd9e87159d65", "| input | x \\| y |",
                 f"`{weights_hash(WEIGHTS)}`", "| Python | 3.", "| numpy | 1."):  # fmt: skip
        assert said in card


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
        **{"network": "<img src=x onerror=alert(1)>", "loss": "[x](javascript:alert)\n# y"},
    }
    metrics = '{"update": 1, "target": "a|<b>", "accuracy": 0.5}\n'
    card = card_of(tmp_path, config=json.dumps(config), metrics=metrics)
    for said in ("lr_steps | 10,20", "optimizer | sgd", "rec | a,c", "a\\|&lt;b> | 0.5000 | 1"):
        assert f"| {said} |" in card
    for left_out in ("secret", "resume", "dataset", "mixup", "sync_bn", "/data", "<img", "\n# y"):
        assert left_out not in card
    assert "&lt;img src=x onerror=alert(1)>" in card and "| \\[x](javascript:alert)\\n# y |" in card


@pytest.mark.parametrize("value", ["null", '"0.9"', "[0.9]", "true", "1e400"])
def test_an_accuracy_that_is_no_number_is_none(tmp_path: Path, value: str) -> None:
    metrics = f'{{"update": 1, "target": "lfw", "accuracy": {value}}}\n'
    assert "no `metrics.jsonl`" in card_of(tmp_path, metrics=metrics)


@pytest.mark.parametrize("files", [{"config": "[]"}, {"metrics": '{"target": "lfw"}\n'}])
def test_a_damaged_file_is_named(tmp_path: Path, files: Any) -> None:
    (name,) = files
    with pytest.raises(DataError, match=f"{name}.json.* is damaged.*; copy it again, or move it"):
        card_of(tmp_path, **files)
