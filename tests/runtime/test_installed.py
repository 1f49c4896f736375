"""What is read from NVIDIA's driver and libraries, of which a stub is compiled here."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from runtime import installed
from runtime.errors import ConfigError
from runtime.installed import Gpu

STUB = r"""
#include <cstdio>
#include <cstring>
extern "C" {
static int started = 0;
int cuInit(unsigned flags) { started = 1; return flags + INIT; }
int cuDeviceGetCount(int* count) { *count = 2; return started ? STATUS : 3; }
int cuDeviceGet(int* device, int index) { *device = 40 + index; return 0; }
int cuDeviceGetName(char* name, int size, int device) {
    std::snprintf(name, size, "Tesla %d", device); return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = (size_t(device) << 30); return 0; }
int cuDeviceGetAttribute(int* value, int key, int device) {
    *value = key == 75 ? 8 : key == 76 ? device - 40 : -1; return 0;
}
int cuDriverGetVersion(int* version) { *version = 11040; return 0; }
int cudaRuntimeGetVersion(int* version) { *version = 11020; return 0; }
int cudaDriverGetVersion(int* version) { return 35; }
size_t cudnnGetVersion() { return 8100; }
}
"""


def stub(folder: Path, init: int = 0, status: int = 0) -> str:
    source, library = folder / "stub.cc", folder / f"libcuda{init}-{status}.so"
    source.write_text(STUB, encoding="utf-8")
    values = [f"-DINIT={init}", f"-DSTATUS={status}"]
    command = ["c++", "-shared", "-fPIC", *values, "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return str(library)


def test_the_driver_describes_the_gpus(tmp_path: Path) -> None:
    found = installed.gpus(stub(tmp_path))
    assert found == [Gpu("Tesla 40", (8, 0), 40 * 2**30), Gpu("Tesla 41", (8, 1), 41 * 2**30)]


def test_a_driver_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cuDeviceGetCount fails with CUDA error 999; nvidia-smi"):
        installed.gpus(stub(tmp_path, status=999))
    with pytest.raises(ConfigError, match="cuInit fails with CUDA error 803"):
        installed.gpus(stub(tmp_path, init=803))
    # CUDA_ERROR_NO_DEVICE
    assert installed.gpus(stub(tmp_path, init=100)) == []
    assert installed.gpus(str(tmp_path / "none.so")) == []


def test_versions_of_libraries(tmp_path: Path) -> None:
    library = ctypes.CDLL(stub(tmp_path))
    assert installed.version(library, "cudaRuntimeGetVersion") == 11020
    assert installed.version(library, "cudnnGetVersion") == 8100
    # One that fails, and one that is not there.
    assert installed.version(library, "cudaDriverGetVersion") is None
    assert installed.version(library, "ncclGetVersion") is None


def test_the_drivers_version(tmp_path: Path) -> None:
    assert installed.driver_version(stub(tmp_path)) == 11040
    assert installed.driver_version(str(tmp_path / "none.so")) is None


def test_the_cuda_of_a_package() -> None:
    assert installed.cuda_of("mxnet-cu112") == (11, 2)
    assert installed.cuda_of("mxnet-cu101") == (10, 1)
    assert installed.cuda_of("mxnet") is None


@pytest.mark.parametrize(
    ("package", "capability", "runs"),
    [
        ("mxnet-cu101", (3, 0), True),
        ("mxnet-cu101", (3, 5), True),
        ("mxnet-cu101", (7, 5), True),
        ("mxnet-cu101", (8, 0), False),
        ("mxnet-cu102", (7, 5), True),
        ("mxnet-cu110", (8, 0), True),
        ("mxnet-cu110", (8, 9), True),
        ("mxnet-cu111", (8, 6), True),
        ("mxnet-cu112", (3, 5), False),
        ("mxnet-cu112", (7, 5), True),
        ("mxnet-cu117", (8, 9), True),
        ("mxnet-cu117", (9, 0), False),
        ("mxnet-cu117", (12, 0), False),
        ("mxnet-cu999", (8, 0), None),
    ],
)
def test_which_package_has_code_for_a_gpu(package, capability, runs) -> None:
    assert Gpu("x", capability, 1).runs(package) is runs
