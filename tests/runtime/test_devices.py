"""The device of each rank; the driver is a library of three functions, compiled here."""

from __future__ import annotations

import ctypes
import subprocess
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel.world import LoneWorld
from runtime import devices
from runtime.errors import ConfigError
from runtime.installed import CudaDriver
from runtime.mxnet import mx
from tests.device.stalled_device import stalled
from tests.support.thread_world import ThreadWorld, run_ranks

# GPU n of rank r has the UUID 00…0N with N = GPUS[r][n]; the status is of the last call. As slices
# (SLICES) of one GPU they have one UUID in the former call, and their own in that of CUDA 11.4.
DRIVER = """
#include <string.h>
static int gpus[4], status;
void show(int a, int b, int c, int d, int s) {
  gpus[0] = a; gpus[1] = b; gpus[2] = c; gpus[3] = d; status = s;
}
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int number) { *device = 100 + number; return 0; }
static int tell(char *out, int device) {
  memset(out, 0, 16); out[15] = gpus[device - 100]; return status;
}
#ifdef SLICES
int cuDeviceGetUuid(char *out, int device) { memset(out, 7, 16); return status; }
int cuDeviceGetUuid_v2(char *out, int device) { return tell(out, device); }
#else
int cuDeviceGetUuid(char *out, int device) { return tell(out, device); }
#endif
"""


class Host:
    """What each rank sees: the numbers of its GPUs. Ranks are threads, of which one computes."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, *macros: str) -> None:
        library = folder / "libcuda.so.1"
        compiler = ["cc", *macros, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
        subprocess.run(compiler, input=DRIVER, text=True, check=True)
        patch.setattr(devices, "CudaDriver", partial(CudaDriver, str(library)))
        self._patch = patch
        self._driver = ctypes.CDLL(str(library))
        self.status = 0

    def choose(self, seen: list[list[int]], dtype: str = "float32") -> list[Any]:
        """The device of each rank, or its error."""

        def choose(world: ThreadWorld) -> Any:
            own = seen[world.rank]
            self._patch.setattr(mx.context, "num_gpus", lambda: len(own))
            self._driver.show(*(own + [0] * 4)[:4], self.status)
            try:
                return devices.choose(world, dtype)
            except ConfigError as error:
                return str(error)

        return run_ranks(len(seen), choose)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> Host:
    """A host without the variables of a launcher."""
    for name in ("CUDA_VISIBLE_DEVICES", "GROUPING_LOCAL_WORKER"):
        monkeypatch.delenv(name, raising=False)
    return Host(monkeypatch, tmp_path, *getattr(request, "param", ()))


@pytest.mark.parametrize("host", [(), ("-DSLICES",)], indirect=True, ids=["GPUs", "slices"])
def test_ranks_take_the_gpus_of_their_numbers_or_the_only_one(host: Host) -> None:
    assert host.choose([[7, 8, 9]] * 3) == [mx.gpu(0), mx.gpu(1), mx.gpu(2)]
    assert host.choose([[7, 8]] * 2, "float16") == [mx.gpu(0), mx.gpu(1)]
    # With or without CUDA_VISIBLE_DEVICES: a container has no such variable.
    assert host.choose([[7], [8], [9]]) == [mx.gpu(0)] * 3
    assert host.choose([[7, 8], [9]]) == [mx.gpu(0)] * 2
    assert host.choose([[], []]) == host.choose([[], []], "bfloat16") == [mx.cpu()] * 2


@pytest.mark.parametrize(
    ("seen", "dtype", "status", "message"),
    [
        ([[7], [8], [7]], "float32", 0, f"ranks 0 and 2 would share GPU-{uuid.UUID(int=7)};"),
        ([[7, 8], [9, 7], [7, 7, 7]], "float32", 0, "ranks 0 and 1 would share GPU-"),
        ([[7], [], [9]], "float32", 0, "rank 1 sees no GPU, but rank 0 does; "),
        ([[], [], [9]], "float32", 0, "rank 0 sees no GPU, but rank 2 does; "),
        ([[7], [8]], "float32", 3, "NVIDIA's driver does not work: cuDeviceGetUuid fails with"),
        ([[], []], "float16", 0, "--dtype float16 needs a GPU"),
        ([[7], [8]], "bfloat16", 0, "--dtype bfloat16 is for CPUs: MXNet has no bfloat16 on a GPU"),
    ],
)
def test_ranks_are_refused_with_the_same_line(host, seen, dtype, status, message) -> None:
    host.status = status
    (line,) = set(host.choose(seen, dtype))
    assert line.startswith(message) and "\n" not in line


def test_a_rank_without_a_gpu_is_refused(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    with pytest.raises(ConfigError, match="local rank 2 has no GPU: this process sees 2; start at"):
        devices.choose(LoneWorld(local_rank=2), "float32")
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 1)
    assert devices.choose(LoneWorld(local_rank=1), "float32") == mx.gpu(0)
    # parallel.launch gives its workers the same variables, and most of them cannot compare.
    monkeypatch.setenv("GROUPING_LOCAL_WORKER", "1")
    assert devices.choose(LoneWorld(local_rank=0), "float32") == mx.gpu(0)
    with pytest.raises(ConfigError, match="local rank 1 has no GPU: this process sees 1"):
        devices.choose(LoneWorld(local_rank=1), "float32")


@pytest.mark.parametrize("context", [mx.cpu(), mx.cpu(1)])
def test_uploads_have_the_values_that_were_there_when_they_were_queued(context: Any) -> None:
    upload, values, copies = devices.Uploads(context), np.zeros((64, 1000), np.int32), []
    for number in range(5):
        values[:] = number
        copies.append(upload(values))
    transposed = upload(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert [copy.asnumpy()[0, 0] for copy in copies] == [0, 1, 2, 3, 4]
    assert all((copy.asnumpy() == number).all() for number, copy in enumerate(copies))
    assert {copy.context for copy in (*copies, transposed)} == {context}
    assert copies[0].dtype == np.int32
    assert transposed.asnumpy().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_an_upload_does_not_wait_for_the_one_before() -> None:
    """Which a device may not have got to; it waits for the one before that."""
    device = mx.cpu(1)
    upload, values = devices.Uploads(device), np.zeros(1000, np.float32)
    upload(values)
    mx.nd.waitall()
    with stalled(device, patience=0.5) as stall:
        copies = [upload(values), upload(values)]
        assert not stall.waiting
        copies.append(upload(values))
        assert stall.waiting.startswith("runtime/devices.py:")
    assert len({copy.context for copy in copies}) == 1


def test_only_the_first_cpu_context_is_the_host() -> None:
    assert devices.is_host(mx.cpu()) and devices.is_host(mx.cpu(0))
    # MXNet has device 1 of the processor, too; the tests of the device path rely on it.
    assert not devices.is_host(mx.cpu(1))
    assert not devices.is_host(mx.gpu(0))
