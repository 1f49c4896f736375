from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest

from runtime import engine
from runtime.engine import run_on_engine, settle, submit
from runtime.kernels.compiled import parallel_kernel, prange
from runtime.mxnet import mx
from tests.support.launch import finish


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
    mx.nd.exp(big).wait_to_read()
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
        # A call on the engine's thread may call others.
        found = list(pool.map(lambda n: run_on_engine(lambda: run_on_engine(lambda: n)), range(99)))
    assert found == [*range(99)]


def test_ctrl_c_right_after_a_call_is_queued_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal may arrive anywhere, also before the caller begins to wait."""
    ended = []

    def call() -> None:
        time.sleep(0.1)
        ended.append(True)

    def interrupted(status: int) -> None:
        # The engine has the call, and begins it.
        assert status == 0
        deadline = time.monotonic() + 5
        while engine._calls and time.monotonic() < deadline:
            time.sleep(0.001)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(mx.base, "check_call", interrupted)
        run_on_engine(call)
    assert ended == [True] and run_on_engine(lambda: 1) == 1


def test_ctrl_c_before_a_call_is_queued_takes_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the caller would wait for what never begins."""
    interrupt = Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(mx.base._LIB, "MXEnginePushSyncND", interrupt)
        run_on_engine(lambda: pytest.fail("it was taken back"))
    assert not engine._calls and run_on_engine(lambda: 1) == 1


def test_what_a_queued_call_raises_is_raised_by_the_next_that_asks() -> None:
    order = mx.nd.zeros(1)
    submit(lambda: 1 // 0, [], [order])
    with pytest.raises(ZeroDivisionError):
        settle(order)
    submit(lambda: [][1], [], [order])
    order.wait_to_read()
    with pytest.raises(IndexError):
        submit(lambda: pytest.fail("it comes behind a failure"), [], [order])
    settle(order)
    assert not engine._calls


ORDERED = """
import time
from runtime.engine import settle, submit
from runtime.mxnet import mx

found = []
first, second = mx.nd.zeros(1), mx.nd.zeros(1)
mx.nd.waitall()
submit(lambda: (time.sleep(0.1), found.append("slow")), [], [first])
submit(lambda: found.append("beside"), [], [second])
submit(lambda: found.append("after"), [first], [])
submit(lambda: found.append("last"), [], [first])
settle(first)
print(*found)
for number in range(3):
    submit(lambda: time.sleep(0.1), [], [first])
submit(lambda: print("the end"), [], [first])
"""


def test_calls_are_ordered_by_their_arrays_and_run_before_the_interpreter_ends() -> None:
    """With one thread for operators they would run in their order whatever their arrays."""
    done = finish(sys.executable, "-c", ORDERED, MXNET_CPU_WORKER_NTHREADS="2")
    assert (done.stdout, done.stderr) == ("beside slow after last\nthe end\n", "")
