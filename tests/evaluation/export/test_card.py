from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.export.card import weights_hash, write_card
from runtime.errors import DataError

WEIGHTS = {"b": np.ones(2, np.float32), "a": np.zeros((1, 2), np.float32)}


def card_of_nothing(folder: Path) -> str:
    return write_card(Path("net.onnx"), bytes(1234), WEIGHTS, [("input", "x | y")], folder)


def card_of(folder: Path, record: dict[str, Any], config: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text(json.dumps({"update": 1, **record}) + "\n")
    return card_of_nothing(folder)


def test_without_a_run_the_card_says_what_is_not_known(tmp_path: Path) -> None:
    card = card_of_nothing(tmp_path)
    assert card.startswith("# net\n") and card.count("Not known") == 2
    assert "| `net.onnx` | 1,234 | `ad47fd9e87159d65" in card
    # A line in a cell would end it.
    assert "| input | x \\| y |" in card
    assert f"`{weights_hash(WEIGHTS)}`" in card
    assert "| Python | 3." in card and "| numpy | 1." in card


def test_the_hash_is_of_names_shapes_and_values() -> None:
    assert weights_hash({name: WEIGHTS[name] for name in "ab"}) == weights_hash(WEIGHTS)
    a, b = WEIGHTS["a"], WEIGHTS["b"]
    for other in (np.array([1, 2], np.float32), b[:, np.newaxis], np.ones(2)):
        assert weights_hash({"a": a, "b": other}) != weights_hash(WEIGHTS)
    assert weights_hash({"a": a, "c": b}) != weights_hash(WEIGHTS)


def test_options_of_the_run_but_not_where_it_was_and_no_markup(tmp_path: Path) -> None:
    config = {
        **{"models_root": "/data/secret", "resume": "auto", "dataset": None, "mixup": 0.0},
        **{"lr_steps": [10, 20], "optimizer": "sgd", "sync_bn": False, "rec": ["/data/a", "b/c"]},
        **{"network": "<img src=x onerror=alert(1)>", "loss": "[x](javascript:alert)\n# y"},
    }
    card = card_of(tmp_path, {"target": "a|<b>", "accuracy": 0.5}, config)
    for said in ("lr_steps | 10,20", "optimizer | sgd", "rec | a,c", "a\\|&lt;b> | 0.5000 | 1"):
        assert f"| {said} |" in card
    for left_out in ("secret", "resume", "dataset", "mixup", "sync_bn", "/data", "<img", "\n# y"):
        assert left_out not in card
    assert "&lt;img src=x onerror=alert(1)>" in card and "| \\[x](javascript:alert)\\n# y |" in card


@pytest.mark.parametrize("value", [None, "0.9", [0.9], True, 1e400])
def test_an_accuracy_that_is_no_number_is_none(tmp_path: Path, value: Any) -> None:
    assert "no `metrics.jsonl`" in card_of(tmp_path, {"target": "lfw", "accuracy": value}, {})


@pytest.mark.parametrize(
    ("name", "content"), [("config.json", "[]"), ("metrics.jsonl", '{"target": "lfw"}\n')]
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=f"{name} is damaged.*; copy it again, or move it away$"):
        card_of_nothing(tmp_path)
