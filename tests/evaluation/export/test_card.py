from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.export.card import Facts, weights_hash, write_card
from runtime.errors import DataError

WEIGHTS = {"b": np.ones(2, np.float32), "a": np.zeros((1, 2), np.float32)}
FACTS = Facts("net", [("net.onnx", 1234, "ab12")], [("input", "x | y")], WEIGHTS)


def test_without_a_run_the_card_says_what_is_not_known(tmp_path: Path) -> None:
    card = write_card(FACTS, tmp_path)
    assert card.startswith("# net\n") and card.count("Not known") == 2
    assert "| `net.onnx` | 1,234 | `ab12` |" in card
    # A line in a cell would end it.
    assert "| input | x \\| y |" in card
    assert f"`{weights_hash(WEIGHTS)}`" in card


def test_the_hash_is_of_names_shapes_and_values() -> None:
    reordered = {"a": WEIGHTS["a"], "b": WEIGHTS["b"]}
    assert weights_hash(reordered) == weights_hash(WEIGHTS)
    others: list[dict[str, Any]] = [
        {**WEIGHTS, "b": np.array([1, 2], np.float32)},
        {**WEIGHTS, "b": np.ones((2, 1), np.float32)},
        {"c": WEIGHTS["b"], "a": WEIGHTS["a"]},
        {**WEIGHTS, "b": np.ones(2)},
    ]
    for other in others:
        assert weights_hash(other) != weights_hash(WEIGHTS)


def test_options_of_the_run_but_not_where_it_was(tmp_path: Path) -> None:
    config = {
        **{"models_root": "/data/secret", "resume": "auto", "dataset": None, "mixup": 0.0},
        **{"lr_steps": [10, 20], "network": "r50", "sync_bn": False, "rec": ["/data/a", "b/c"]},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    card = write_card(FACTS, tmp_path)
    assert "| lr_steps | 10,20 |" in card and "| network | r50 |" in card
    assert "| rec | a,c |" in card and "mixup" not in card
    for left_out in ("secret", "resume", "dataset", "sync_bn", "/data"):
        assert left_out not in card


def test_a_verification_that_was_not_finite_is_none(tmp_path: Path) -> None:
    record = {"update": 1, "target": "lfw", "accuracy": None}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    assert write_card(FACTS, tmp_path).count("Not known") == 2


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", [b"{\n", b"[]\n", b"\xff\n", b"7\n"])
def test_damaged_files_are_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name} is damaged.*; copy it again, or move it away$"):
        write_card(FACTS, tmp_path)


@pytest.mark.parametrize("value", ["0.9", [0.9], True, 1e400])
def test_an_accuracy_that_is_no_number_is_none(tmp_path: Path, value: Any) -> None:
    record = {"update": 1, "target": "lfw", "accuracy": value}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    assert write_card(FACTS, tmp_path).count("Not known") == 2


def test_a_record_without_its_update_is_damage(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"target": "lfw", "accuracy": 0.9}\n')
    with pytest.raises(DataError, match="metrics.jsonl is damaged"):
        write_card(FACTS, tmp_path)


def test_what_a_run_says_becomes_no_markup(tmp_path: Path) -> None:
    config = {"network": "<img src=x onerror=alert(1)>", "loss": "[x](javascript:alert)\n# y"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    record = {"update": 1, "target": "a|<b>", "accuracy": 0.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    card = write_card(FACTS, tmp_path)
    assert "&lt;img src=x onerror=alert(1)>" in card and "<img" not in card
    assert "| \\[x](javascript:alert)\\n# y |" in card and "\n# y" not in card
    assert "| a\\|&lt;b> | 0.5000 | 1 |" in card
