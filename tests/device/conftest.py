"""What a report of ``make test-gpu`` begins with: the build of MXNet, CUDA and the GPUs."""

import ctypes
from typing import Optional

import pytest

from runtime import installed
from runtime.mxnet import mx
from tests.device.updates import DEVICE, ON_GPU


def pytest_configure() -> None:
    if ON_GPU and DEVICE.device_id >= mx.context.num_gpus():
        raise pytest.UsageError(
            f"TOOLKIT_DEVICE={DEVICE}: MXNet ({installed.mxnet_package()}) sees "
            f"{mx.context.num_gpus()} GPUs; install the package and the driver that docs/gpu.md "
            "names, or leave TOOLKIT_DEVICE out"
        )


def _version(name: str) -> Optional[int]:
    """The version of a library that MXNet's uses; None if there is none."""
    function = getattr(mx.base._LIB, f"{name}GetVersion", None)
    if function is None:
        return None
    if name == "cudnn":
        function.restype = ctypes.c_size_t
        return int(function())
    value = ctypes.c_int()
    return value.value if function(ctypes.byref(value)) == 0 else None


def pytest_report_header() -> list[str]:
    package = installed.mxnet_package()
    lines = [f"MXNet {mx.__version__}, package {package}, on {DEVICE}"]
    for name in ("cudaRuntime", "cudaDriver", "cudnn", "nccl") if ON_GPU else ():
        lines.append(f"{name}: {_version(name)}")
    for gpu in installed.gpus()[0]:
        capability = "{}.{}".format(*gpu.capability)
        has = {True: "has", False: "has NO", None: "may have"}[gpu.runs(package)]
        lines.append(f"{gpu.name}, {capability}; MXNet {has} code for it")
    return lines
