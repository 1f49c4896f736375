"""The benchmark of classifiers measures a step of those that are named."""

from __future__ import annotations

import re

import pytest

from benchmarks import classifiers
from runtime.errors import ConfigError


def test_a_small_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "ResNet18", "--batch", "2", "--rounds", "1", "--threads", "1"]
    classifiers.main(words)
    printed = capsys.readouterr().out
    rows = re.findall(r"^\| (\w+) +\| +([\d.,]+) +\| +([\d.,]+) +\|$", printed, re.MULTILINE)
    assert [model for model, _, _ in rows] == ["ResNet18"], printed
    assert all(float(speed.replace(",", "")) > 0 for _, *speeds in rows for speed in speeds)


def test_an_unknown_model() -> None:
    with pytest.raises(ConfigError, match="did you mean 'ResNet18'"):
        classifiers.main(["--model", "ResNet17"])
