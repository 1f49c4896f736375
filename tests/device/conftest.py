"""What a report of ``make test-gpu`` begins with: the build of MXNet, CUDA and the GPUs."""

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


def pytest_report_header() -> list[str]:
    package, library = installed.mxnet_package(), mx.base._LIB
    lines = [f"MXNet {mx.__version__}, package {package}, on {DEVICE}"]
    for name in ("cudaRuntime", "cudaDriver", "cudnn", "nccl") if ON_GPU else ():
        lines.append(f"{name}: {installed.version(library, f'{name}GetVersion')}")
    for gpu in installed.gpus():
        capability = "{}.{}".format(*gpu.capability)
        has = {True: "has", False: "has NO", None: "may have"}[gpu.runs(package)]
        lines.append(f"{gpu.name}, {gpu.memory / 2**30:.1f} GiB, {capability}; MXNet {has} code")
    return lines
