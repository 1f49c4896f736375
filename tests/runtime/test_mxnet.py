from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Optional

import pytest

from runtime import processors

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys
import numpy as np
vars(np).pop("bool", None)
from runtime.mxnet import mx
assert np.bool is bool
assert mx is sys.modules["mxnet"]
# protobuf's compiled form, which Python 3.9 and 3.10 have, crashes beside libmxnet.so.
assert os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] == "python"
print(os.environ["OMP_NUM_THREADS"], int((mx.nd.ones((2, 3)) > 0).sum().asscalar()))
"""


@pytest.mark.parametrize("chosen", [None, "1"])
def test_mxnet_is_imported_with_its_alias_and_its_environment(chosen: Optional[str]) -> None:
    ours = ("OMP_NUM_THREADS", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION")
    environment = {k: v for k, v in os.environ.items() if k not in ours}
    if chosen:
        environment["OMP_NUM_THREADS"] = chosen
    result = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", "-c", PROGRAM],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    expected = chosen or str(processors.available())
    assert result.stdout == f"{expected} 6\n"
