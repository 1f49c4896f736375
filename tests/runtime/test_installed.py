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


def test_the_driver_describes_the_gpus_and_versions(tmp_path: Path) -> None:
    path, absent = stub(tmp_path), str(tmp_path / "none.so")
    found = installed.gpus(path)
    assert found == [Gpu("Tesla 40", (8, 0), 40 * 2**30), Gpu("Tesla 41", (8, 1), 41 * 2**30)]
    assert installed.gpus(absent) == []
    assert installed.driver_version(path) == 11040
    assert installed.driver_version(absent) is None
    # The last two: one that fails, and one that is not there.
    for name, version in (
        ("cudaRuntimeGetVersion", 11020),
        ("cudnnGetVersion", 8100),
        ("cudaDriverGetVersion", None),
        ("ncclGetVersion", None),
    ):
        assert installed.version(ctypes.CDLL(path), name) == version
    # By the call that CUDA 11.4 has brought, slices of a GPU have UUIDs of their own.
    assert installed.CudaDriver(path).identity(1) == bytes([41] * 16)
    assert installed.CudaDriver(stub(tmp_path, 0, 1, "-DSLICES")).identity(1) == bytes([42] * 16)


def test_a_driver_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cuDeviceGetCount fails with CUDA error 999; nvidia-smi"):
        installed.gpus(stub(tmp_path, status=999))
    with pytest.raises(ConfigError, match="cuInit fails with CUDA error 803"):
        installed.gpus(stub(tmp_path, init=803))
    # CUDA_ERROR_NO_DEVICE
    assert installed.gpus(stub(tmp_path, init=100)) == []


@pytest.mark.parametrize(
    ("package", "cuda", "runs", "does_not"),
    [
        ("mxnet-cu101", (10, 1), [(3, 0), (5, 0), (6, 0), (7, 0), (7, 5)], [(8, 0)]),
        ("mxnet-cu102", (10, 2), [(7, 5)], [(8, 0)]),
        ("mxnet-cu110", (11, 0), [(5, 0), (6, 0), (7, 0), (8, 0), (8, 9)], [(3, 5)]),
        ("mxnet-cu111", (11, 1), [(8, 6)], [(3, 5)]),
        ("mxnet-cu112", (11, 2), [(7, 5)], [(3, 5)]),
        ("mxnet-cu117", (11, 7), [(8, 9)], [(9, 0), (12, 0)]),
        ("mxnet", None, [], []),
    ],
)
def test_which_package_has_code_for_a_gpu(package, cuda, runs, does_not) -> None:
    assert installed.cuda_of(package) == cuda
    assert [Gpu("x", one, 1).runs(package) for one in runs] == [True] * len(runs)
    assert [Gpu("x", one, 1).runs(package) for one in does_not] == [False] * len(does_not)
    assert Gpu("x", (8, 0), 1).runs("mxnet-cu999") is None


@pytest.mark.parametrize(
    ("driver", "cuda", "is_too_old"),
    [
        (10010, 10020, True),
        (10020, 10020, False),
        (10020, 11000, True),
        # From 11 on, an older driver of the same major version is enough.
        (11000, 11070, False),
        (12000, 11070, False),
    ],
)
def test_a_driver_serves_earlier_versions_and_those_of_its_family(driver, cuda, is_too_old):
    assert installed.is_too_old(driver, cuda) == is_too_old
    assert f"{driver // 1000}.{driver % 1000 // 10}" == installed.dotted(driver)
