from __future__ import annotations

import sys

from tests.support.launch import finish

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


def test_mxnet_is_imported_with_its_alias_and_its_environment() -> None:
    options = ("-W", "error::FutureWarning")
    done = finish(sys.executable, *options, "-c", PROGRAM, HOROVOD_LOCAL_SIZE="9999")
    assert done.stdout == "1 6\n"


def test_mxnet_needs_docstrings() -> None:
    said = finish(sys.executable, "-OO", "-c", PROGRAM, status=1).stderr
    assert "python -OO (PYTHONOPTIMIZE=2) removes" in said
