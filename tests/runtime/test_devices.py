"""MXNet's engine, arrays and devices, and a stub of NVIDIA's driver."""

import ctypes
import os
import subprocess
import sys
import threading
import uuid
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from parallel.world import LoneWorld
from runtime import devices, installed, ndarray
from runtime.errors import ConfigError
from runtime.installed import Gpu
from runtime.kernels import parallel_kernel, prange
from runtime.mxnet import mx
from runtime.ndarray import queue, run_on_engine, settle
from tests.device.conftest import pytest_report_header
from tests.support.launch import finish
from tests.support.thread_world import ThreadWorld, run_ranks

PROGRAM = """
import os, sys
import numpy as np
vars(np).pop("bool", None)
from runtime.kernels import unlocked_kernel
from runtime.mxnet import mx
assert np.bool is bool
assert mx is sys.modules["mxnet"]
assert unlocked_kernel(lambda number: number + 1)(1) == 2
assert not {"onnx", "sklearn", "scipy"} & {*sys.modules}
# What was left out can be imported afterwards.
import scipy
# protobuf's compiled form, which Python 3.9 and 3.10 have, crashes with libmxnet.so.
assert os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] == "python"
print(os.environ["OMP_NUM_THREADS"], int((mx.nd.ones((2, 3)) > 0).sum().asscalar()))
"""
ORDERED = """
import time
from runtime.ndarray import queue, settle
from runtime.mxnet import mx

found = []
first, second = mx.nd.zeros(1), mx.nd.zeros(1)
mx.nd.waitall()
queue(lambda: (time.sleep(0.1), found.append("slow")), writes=[first])
queue(lambda: found.append("beside"), writes=[second])
queue(lambda: found.append("after"), reads=[first], writes=[])
queue(lambda: found.append("last"), writes=[first])
settle(first)
print(*found)
for number in range(3):
    queue(lambda: time.sleep(0.1), writes=[first])
queue(lambda: print("the end"), writes=[first])
"""
_Pair = namedtuple("_Pair", "factor numbers")
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
int cuDeviceGetAttribute(int* value, int key, int device) {
    *value = key == 75 ? 8 : key == 76 ? device - 40 : -1; return 0;
}
int cuDeviceGetUuid(char* uuid, int device) { std::memset(uuid, device, 16); return 0; }
#ifdef SLICES
int cuDeviceGetUuid_v2(char* uuid, int device) { std::memset(uuid, device + 1, 16); return 0; }
#endif
int cuDriverGetVersion(int* version) { *version = 11040; return 0; }
}
"""


def test_mxnet_is_imported_with_its_alias_and_its_environment() -> None:
    options = ("-W", "error::FutureWarning")
    done = finish(sys.executable, *options, "-c", PROGRAM, HOROVOD_LOCAL_SIZE="9999")
    assert done.stdout == "1 6\n"


@parallel_kernel
def _add_one(numbers):
    for n in prange(numbers.size):
        numbers[n] += 1


def test_kernels_and_operators_have_the_same_threads() -> None:
    # Numba reads its settings when it is imported, which the project does.
    import numba

    numbers = np.zeros(1 << 16)
    big = mx.nd.ones((512, 512))
    mx.nd.dot(big, big).wait_to_read()
    before = set(os.listdir("/proc/self/task"))
    _add_one(numbers)
    assert numba.threading_layer() == "omp"
    assert numbers.tolist() == [1.0] * numbers.size
    assert set(os.listdir("/proc/self/task")) == before
    # Else an operator below a kernel's thread, or an operator's own, would start others.
    openmp = ctypes.CDLL("libgomp.so.1")
    assert run_on_engine(openmp.omp_get_nested) == 0


def test_the_thread_of_operators_runs_all_calls_each_with_its_result_or_error() -> None:
    threads = {run_on_engine(threading.get_ident) for _ in range(8)}
    assert len(threads) == 1 and threading.get_ident() not in threads
    with pytest.raises(ZeroDivisionError):
        run_on_engine(lambda: 1 // 0)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: run_on_engine(lambda: run_on_engine(lambda: n)), range(99)))
    assert found == [*range(99)]


def test_what_a_queued_call_raises_is_raised_by_the_next_that_asks() -> None:
    order = mx.nd.zeros(1)
    queue(lambda: 1 // 0, writes=[order])
    with pytest.raises(ZeroDivisionError):
        settle(order)
    queue(lambda: [][1], writes=[order])
    order.wait_to_read()
    with pytest.raises(IndexError):
        queue(lambda: pytest.fail("it comes behind a failure"), writes=[order])
    settle(order)
    assert not ndarray._calls


def test_calls_are_ordered_by_their_arrays_and_run_before_the_interpreter_ends() -> None:
    """With one thread for operators they would run in their order whatever their arrays."""
    done = finish(sys.executable, "-c", ORDERED, MXNET_CPU_WORKER_NTHREADS="2")
    assert (done.stdout, done.stderr) == ("beside slow after last\nthe end\n", "")


def _add_product(sums, pairs) -> None:
    for factor, numbers in pairs:
        sums += factor * numbers


def test_a_queued_call_comes_between_the_operators_before_and_behind_it() -> None:
    size = 1 << 20
    sums, numbers = mx.nd.zeros(size), mx.nd.zeros(size)
    for turn in range(1, 21):
        # As many as are under way when the next ones are queued.
        numbers[:] = turn
        queue(_add_product, sums, (_Pair(2.0, numbers),), writes=[sums])
        queue(_add_one, numbers, writes=[numbers])
        queue(_add_product, sums, (_Pair(0.5, numbers),), writes=[sums])
        sums += 1
    expected = sum(2 * turn + 0.5 * (turn + 1) + 1 for turn in range(1, 21))
    assert np.array_equal(sums.asnumpy(), np.full(size, expected, np.float32))


def test_addresses_are_given_when_all_operators_have_run() -> None:
    arrays = [mx.nd.zeros(1 << 22) for _ in range(3)]
    for array in arrays:
        for _ in range(5):
            array += 1
    found = [ctypes.c_float.from_address(one).value for one in ndarray.addresses(arrays)]
    assert found == [5.0] * 3


def stub(folder, init: int = 0, status: int = 0, *macros: str) -> str:
    source, library = folder / "stub.cc", folder / f"libcuda{init}-{status}.so"
    source.write_text(STUB, encoding="utf-8")
    values = [f"-DINIT={init}", f"-DSTATUS={status}", *macros]
    command = ["c++", "-shared", "-fPIC", *values, "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return str(library)


def test_the_driver_describes_the_gpus_and_versions(tmp_path) -> None:
    path, absent = stub(tmp_path), str(tmp_path / "none.so")
    gpus = [Gpu("Tesla 40", (8, 0)), Gpu("Tesla 41", (8, 1))]
    assert installed.gpus(path) == (gpus, 11040) and installed.gpus(absent) == ([], 0)
    # By the call of CUDA 11.4, slices of a GPU have UUIDs of their own.
    assert installed.CudaDriver(path).identity(1) == bytes([41] * 16)
    assert installed.CudaDriver(stub(tmp_path, 0, 1, "-DSLICES")).identity(1) == bytes([42] * 16)
    with pytest.raises(ConfigError, match="cuDeviceGetCount fails with CUDA error 999; nvidia-smi"):
        installed.gpus(stub(tmp_path, status=999))
    # CUDA_ERROR_NO_DEVICE
    assert installed.gpus(stub(tmp_path, init=100)) == ([], 11040)


def test_which_package_has_code_for_a_gpu() -> None:
    assert installed.cuda_of("mxnet-cu110") == (11, 0) and installed.cuda_of("mxnet") is None
    found = {one: Gpu("x", one).runs("mxnet-cu110") for one in ((5, 0), (8, 9), (3, 5), (9, 0))}
    assert found == {(5, 0): True, (8, 9): True, (3, 5): False, (9, 0): False}
    assert Gpu("x", (8, 0)).runs("mxnet-cu999") is None
    assert installed.dotted(11020) == "11.2"


def test_what_users_send_of_the_tests_on_a_gpu_names_it(monkeypatch) -> None:
    monkeypatch.setattr(installed, "gpus", lambda: ([Gpu("Tesla T4", (7, 5))], 11040))
    monkeypatch.setattr(installed, "mxnet_package", lambda: "mxnet-cu112")
    assert pytest_report_header()[-1] == "Tesla T4, 7.5; MXNet has code for it"


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "GROUPING_LOCAL_WORKER"):
        monkeypatch.delenv(name, raising=False)


def chosen(patch: pytest.MonkeyPatch, seen: list[list[int]], dtype: str = "float32"):
    def choose(world: ThreadWorld):
        own = seen[world.rank]
        driver = SimpleNamespace(identity=lambda number: uuid.UUID(int=own[number]).bytes)
        patch.setattr(mx.context, "num_gpus", lambda: len(own))
        patch.setattr(devices, "CudaDriver", lambda: driver)
        try:
            return devices.choose(world, dtype)
        except ConfigError as error:
            return str(error)

    return run_ranks(len(seen), choose)


def test_ranks_take_the_gpus_of_their_numbers_or_the_only_one(monkeypatch) -> None:
    assert chosen(monkeypatch, [[7, 8]] * 2, "float16") == [mx.gpu(0), mx.gpu(1)]
    # With or without CUDA_VISIBLE_DEVICES: a container has no such variable.
    assert chosen(monkeypatch, [[7], [8], [9]]) == [mx.gpu(0)] * 3
    assert chosen(monkeypatch, [[], []], "bfloat16") == [mx.cpu()] * 2


@pytest.mark.parametrize(("seen", "dtype", "message"), [
    ([[7], [8], [7]], "float32", f"ranks 0 and 2 would share GPU-{uuid.UUID(int=7)};"),
    ([[], [], [9]], "float32", "rank 0 sees no GPU, but rank 2 does; "),
    ([[], []], "float16", "--dtype float16 needs a GPU"),
    ([[7], [8]], "bfloat16", "--dtype bfloat16 is for CPUs: MXNet has no bfloat16 on a GPU"),
])  # fmt: skip
def test_ranks_are_refused_with_the_same_line(seen, dtype, message, monkeypatch) -> None:
    (line,) = set(chosen(monkeypatch, seen, dtype))
    assert line.startswith(message) and "\n" not in line


def test_a_rank_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    with pytest.raises(ConfigError, match="local rank 2 has no GPU: this process sees 2; start at"):
        devices.choose(LoneWorld(local_rank=2), "float32")
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 1)
    # parallel.launch gives its workers the same variables, and most of them cannot compare.
    monkeypatch.setenv("GROUPING_LOCAL_WORKER", "1")
    with pytest.raises(ConfigError, match="local rank 1 has no GPU: this process sees 1"):
        devices.choose(LoneWorld(local_rank=1), "float32")


@pytest.mark.parametrize("context", [mx.cpu(), mx.cpu(1)])
def test_uploads_have_the_values_that_were_there_when_they_were_queued(context) -> None:
    upload, values, copies = devices.Uploads(context), np.zeros((64, 1000), np.int32), []
    for number in range(5):
        values[:] = number
        copies.append(upload(values))
    transposed = upload(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert all((copy.asnumpy() == number).all() for number, copy in enumerate(copies))
    assert {copy.context for copy in (*copies, transposed)} == {context}
    assert copies[0].dtype == np.int32
    assert transposed.asnumpy().tolist() == [[0, 3], [1, 4], [2, 5]]
