"""The order in which MXNet runs what is queued does not matter: every engine gives the same bits.

``NaiveEngine`` runs each operation where it is queued. An operation that reads memory which another
one, unknown to the engine, still writes would give other numbers there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[2]
FEW = ("cosface-sgd", "curricularface-adam")
MANY = ("arcface-adamw", "softmax-sgd", "adaface-sgd", "magface-adam", "curricularface-sgd")


def run_with(engine: str, names: tuple[str, ...]) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-m", "tests.device.engine_run", *names],
        cwd=ROOT,
        env={**clean_environment(), "MXNET_ENGINE_TYPE": engine},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("names", [FEW, pytest.param(MANY, marks=pytest.mark.device)])
def test_engines_give_the_same_bits(names: tuple[str, ...]) -> None:
    queued = run_with("ThreadedEnginePerDevice", names)
    assert queued.keys() == {*names, "classifier"}
    assert all(len(set(losses)) > 1 for losses, _ in queued.values()), "nothing was learnt"
    assert run_with("NaiveEngine", names) == queued
