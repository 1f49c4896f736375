"""The benchmark of classifiers measures a step of those that are named."""

from __future__ import annotations

import re

import pytest

from benchmarks import classifiers, worker
from runtime.errors import ConfigError

HAS_PYTORCH = worker.pytorch_python() is not None


def test_a_small_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "ResNet18", "--batch", "2", "--rounds", "1", "--threads", "1"]
    classifiers.main(words)
    printed = capsys.readouterr().out
    rows = re.findall(r"^\| ResNet18 \|(.*)\|$", printed, re.MULTILINE)
    # Training and inference.
    assert len(rows) == 2, printed
    for row in rows:
        ours, first, second, ratio = (cell.strip() for cell in row.split("|"))
        assert float(ours) > 0
        if HAS_PYTORCH:
            assert min(float(first), float(second)) > 0
            assert 0.5 * float(ratio) < float(ours) / max(float(first), float(second))
        else:
            assert (first, second, ratio) == ("", "", "")


def test_the_ratio_is_to_the_faster_of_pytorchs_formats() -> None:
    seconds = {
        "ours": [1.0, 2.0, 4.0],
        "pytorch": [9.0, 9.0, 9.0],
        "pytorch, channels last": [2.0, 4.0, 2.0],
    }
    assert classifiers.line("A", 4, seconds) == ["A", "2.0", "0.4", "2.0", "2.00"]
    assert classifiers.line("A", 4, {"ours": [2.0]}) == ["A", "2.0", "", "", ""]


def test_an_unknown_model() -> None:
    with pytest.raises(ConfigError, match="did you mean 'ResNet18'"):
        classifiers.main(["--model", "ResNet17"])
