"""``train.py`` and ``classify.py`` in the process of a test, on a device or on the host."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from backbones.graph.parameter_file import read_parameters
from runtime import devices
from tests.support.alone import run_alone


def run_on(context: Any, program: ModuleType, *words: object) -> str:
    """Run a program to its end on a context; returns what it printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "choose", lambda *_: context)
        result = run_alone(program, *words)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def reports(folder: Path, name: str) -> list[float]:
    """The numbers of this name in the reports of a run, such as "loss" or "accuracy"."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [record[name] for record in map(json.loads, lines) if name in record]


def model(folder: Path) -> dict[str, np.ndarray]:
    """The parameters of the model that a run has saved."""
    return read_parameters(folder / "model-0000.params")
