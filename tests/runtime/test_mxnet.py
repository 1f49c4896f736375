from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys
import numpy as np
vars(np).pop("bool", None)
from runtime.mxnet import mx
assert np.bool is bool
assert mx is sys.modules["mxnet"] and "onnx" not in sys.modules
# protobuf's compiled form, which Python 3.9 and 3.10 have, crashes with libmxnet.so.
assert os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] == "python"
print(os.environ["OMP_NUM_THREADS"], int((mx.nd.ones((2, 3)) > 0).sum().asscalar()))
"""


def run(*options: str) -> subprocess.CompletedProcess[str]:
    ours = ("OMP_NUM_THREADS", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(
        [sys.executable, *options, "-c", PROGRAM], cwd=ROOT,
        env={**kept, "HOROVOD_LOCAL_SIZE": "9999"}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_mxnet_is_imported_with_its_alias_and_its_environment() -> None:
    result = run("-W", "error::FutureWarning")
    assert (result.returncode, result.stdout) == (0, "1 6\n"), result.stderr


def test_mxnet_needs_docstrings() -> None:
    result = run("-OO")
    assert result.returncode == 1 and "python -OO (PYTHONOPTIMIZE=2) removes" in result.stderr
