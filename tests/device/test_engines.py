"""The order in which MXNet runs what is queued does not matter: every engine gives the same bits.

``NaiveEngine`` runs each operation where it is queued. An operation that reads memory which another
one, unknown to the engine, still writes would give other numbers there. MXNet reads which engine to
use when it is imported, so each has a process of its own, which is this file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.device.updates import DEVICE, ON_GPU, ClassifierUpdates, Faces, FaceUpdates
from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[2]
RUNS = (Faces(), Faces("curricularface", "adam"), Faces("arcface", "adamw"))
pytestmark = pytest.mark.skipif(ON_GPU, reason="algorithms of a GPU round differently each time")


def run_with(engine: str) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-m", "tests.device.test_engines"],
        cwd=ROOT, env={**clean_environment(), "MXNET_ENGINE_TYPE": engine},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.thorough
def test_engines_give_the_same_bits() -> None:
    queued = run_with("ThreadedEnginePerDevice")
    assert all(len(set(losses)) > 1 for losses, _ in queued.values()), "nothing was learnt"
    assert run_with("NaiveEngine") == queued


def main() -> None:
    """Print the losses and checksums of the arrays of a few updates."""
    found: dict[str, Any] = {}
    for run in (*(FaceUpdates(faces, DEVICE) for faces in RUNS), ClassifierUpdates(DEVICE)):
        losses = run.train(4)
        arrays = {name: zlib.crc32(values.tobytes()) for name, values in run.arrays().items()}
        found[str(len(found))] = losses, arrays
    print(json.dumps(found))


if __name__ == "__main__":
    main()
