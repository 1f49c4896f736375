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
int cuDeviceGetUuid(char* uuid, int device) { std::memset(uuid, device, 16); return 0; }
#ifdef SLICES
int cuDeviceGetUuid_v2(char* uuid, int device) { std::memset(uuid, device + 1, 16); return 0; }
#endif
int cuDriverGetVersion(int* version) { *version = 11040; return 0; }
int cudaRuntimeGetVersion(int* version) { *version = 11020; return 0; }
int cudaDriverGetVersion(int* version) { return 35; }
size_t cudnnGetVersion() { return 8100; }
}
"""


def stub(folder: Path, init: int = 0, status: int = 0, *macros: str) -> str:
    source, library = folder / "stub.cc", folder / f"libcuda{init}-{status}.so"
    source.write_text(STUB, encoding="utf-8")
    values = [f"-DINIT={init}", f"-DSTATUS={status}", *macros]
    command = ["c++", "-shared", "-fPIC", *values, "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return str(library)


def test_the_driver_describes_the_gpus(tmp_path: Path) -> None:
    found = installed.gpus(stub(tmp_path))
    assert found == [Gpu("Tesla 40", (8, 0), 40 * 2**30), Gpu("Tesla 41", (8, 1), 41 * 2**30)]


def test_slices_of_a_gpu_have_uuids_of_their_own(tmp_path: Path) -> None:
    """By the call that CUDA 11.4 has brought; the former one gives all slices that of the GPU."""
    assert installed.CudaDriver(stub(tmp_path)).identity(1) == bytes([41] * 16)
    assert installed.CudaDriver(stub(tmp_path, 0, 1, "-DSLICES")).identity(1) == bytes([42] * 16)


def test_a_driver_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cuDeviceGetCount fails with CUDA error 999; nvidia-smi"):
        installed.gpus(stub(tmp_path, status=999))
    with pytest.raises(ConfigError, match="cuInit fails with CUDA error 803"):
        installed.gpus(stub(tmp_path, init=803))
    # CUDA_ERROR_NO_DEVICE
    assert installed.gpus(stub(tmp_path, init=100)) == []
    assert installed.gpus(str(tmp_path / "none.so")) == []


def test_versions(tmp_path: Path) -> None:
    path = stub(tmp_path)
    library = ctypes.CDLL(path)
    assert installed.version(library, "cudaRuntimeGetVersion") == 11020
    assert installed.version(library, "cudnnGetVersion") == 8100
    # One that fails, and one that is not there.
    assert installed.version(library, "cudaDriverGetVersion") is None
    assert installed.version(library, "ncclGetVersion") is None
    assert installed.driver_version(path) == 11040
    assert installed.driver_version(str(tmp_path / "none.so")) is None
    packages = {"mxnet-cu112": (11, 2), "mxnet-cu101": (10, 1), "mxnet": None}
    assert {package: installed.cuda_of(package) for package in packages} == packages


@pytest.mark.parametrize(
    ("package", "runs", "does_not"),
    [
        ("mxnet-cu101", [(3, 0), (3, 5), (7, 5)], [(8, 0)]),
        ("mxnet-cu102", [(7, 5)], [(8, 0)]),
        ("mxnet-cu110", [(8, 0), (8, 9)], [(3, 5)]),
        ("mxnet-cu111", [(8, 6)], [(3, 5)]),
        ("mxnet-cu112", [(7, 5)], [(3, 5)]),
        ("mxnet-cu117", [(8, 9)], [(9, 0), (12, 0)]),
    ],
)
def test_which_package_has_code_for_a_gpu(package, runs, does_not) -> None:
    assert [Gpu("x", one, 1).runs(package) for one in runs] == [True] * len(runs)
    assert [Gpu("x", one, 1).runs(package) for one in does_not] == [False] * len(does_not)
    assert Gpu("x", (8, 0), 1).runs("mxnet-cu999") is None
