"""Kernels that MXNet's engine runs on its threads."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest

from runtime import ndarray
from runtime.kernels.compiled import parallel_kernel, prange
from runtime.mxnet import mx
from runtime.ndarray import run_on_engine


@parallel_kernel
def _add_one(numbers):
    for n in prange(numbers.size):
        numbers[n] += 1


def test_the_thread_of_operators_runs_all_calls() -> None:
    threads = {run_on_engine(threading.get_ident) for _ in range(8)}
    assert len(threads) == 1 and threading.get_ident() not in threads


def test_kernels_and_operators_have_the_same_threads() -> None:
    # Numba reads its settings when it is imported, which the project does.
    import numba

    def tasks() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    numbers = np.zeros(1 << 16)
    big = mx.nd.ones((512, 512))
    mx.nd.dot(big, big).wait_to_read()
    mx.nd.exp(big).wait_to_read()
    before = tasks()
    _add_one(numbers)
    assert numba.threading_layer() == "omp"
    assert numbers.tolist() == [1.0] * numbers.size
    assert tasks() == before
    # Else an operator below a kernel's thread, or an operator's own, would start others.
    openmp = ctypes.CDLL("libgomp.so.1")
    assert run_on_engine(openmp.omp_get_nested) == 0


def test_an_error_is_raised_where_the_call_came_from() -> None:
    with pytest.raises(ZeroDivisionError):
        run_on_engine(lambda: 1 // 0)
    assert run_on_engine(lambda: 1) == 1


def test_each_of_many_threads_gets_its_own_result() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: run_on_engine(lambda: n), range(400)))
    assert found == [*range(400)]


def test_ctrl_c_does_not_return_before_the_call_has_ended() -> None:
    """The caller would free the arrays that a kernel still writes to."""
    ended = []

    def call() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_on_engine(call)
    assert ended == [True]


def test_ctrl_c_right_after_a_call_is_queued_waits_for_it(monkeypatch) -> None:
    """The signal may arrive anywhere, also before the caller begins to wait."""
    ended = []

    def call() -> None:
        time.sleep(0.3)
        ended.append(True)

    def interrupted(status: int) -> None:
        # The engine has the call, and begins it.
        assert status == 0
        deadline = time.monotonic() + 5
        while ndarray._calls and time.monotonic() < deadline:
            time.sleep(0.001)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(mx.base, "check_call", interrupted)
        run_on_engine(call)
    assert ended == [True] and run_on_engine(lambda: 1) == 1


def test_ctrl_c_before_a_call_is_queued_takes_it_back(monkeypatch) -> None:
    """Else the caller would wait for what never begins."""
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(mx.base._LIB, "MXEnginePushSyncND", _interrupt)
        run_on_engine(lambda: pytest.fail("it was taken back"))
    assert not ndarray._calls and run_on_engine(lambda: 1) == 1


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_call_on_the_thread_of_operators_may_call_others() -> None:
    assert run_on_engine(lambda: run_on_engine(lambda: 1)) == 1


class _Pair(NamedTuple):
    factor: float
    numbers: object


def _add_product(sums, pairs) -> None:
    for factor, numbers in pairs:
        sums += factor * numbers


def test_a_queued_call_comes_between_the_operators_before_and_behind_it() -> None:
    size = 1 << 20
    sums, numbers = mx.nd.zeros(size), mx.nd.zeros(size)
    for turn in range(1, 21):
        # As many as are under way when the next ones are queued.
        numbers[:] = turn
        ndarray.queue(_add_product, sums, (_Pair(2.0, numbers),), writes=[sums])
        ndarray.queue(_add_one, numbers, writes=[numbers])
        ndarray.queue(_add_product, sums, (_Pair(0.5, numbers),), writes=[sums])
        sums += 1
    expected = sum(2 * turn + 0.5 * (turn + 1) + 1 for turn in range(1, 21))
    assert np.array_equal(sums.asnumpy(), np.full(size, expected, np.float32))


def test_an_array_that_is_no_argument_orders_calls() -> None:
    found: list[int] = []
    order, slow = ndarray.new_array(1), threading.Event()
    ndarray.queue(lambda: found.append(slow.wait(10) * 1), writes=[order])
    ndarray.queue(lambda: found.append(2), reads=[order], writes=[])
    # It did not wait.
    assert not found
    slow.set()
    ndarray.settle(order)
    assert found == [1, 2]


def test_what_a_queued_call_raises_is_raised_by_the_next_that_asks() -> None:
    order = ndarray.new_array(1)
    ndarray.queue(lambda: 1 // 0, writes=[order])
    with pytest.raises(ZeroDivisionError):
        ndarray.settle(order)
    ndarray.queue(lambda: [][1], writes=[order])
    order.wait_to_read()
    with pytest.raises(IndexError):
        ndarray.queue(lambda: pytest.fail("it comes behind a failure"), writes=[order])
    ndarray.settle(order)
    assert not ndarray._calls


def test_an_interpreter_that_ends_runs_what_is_queued() -> None:
    """The engine's thread would call an interpreter that is gone."""
    program = (
        "import time\n"
        "from runtime import ndarray\n"
        "order = ndarray.new_array(1)\n"
        "for number in range(3):\n"
        "    ndarray.queue(lambda: time.sleep(0.2), writes=[order])\n"
        "ndarray.queue(lambda: print('the last'), writes=[order])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the last\n", "")


def test_an_array_of_values() -> None:
    copied = ndarray.array_of(np.array([True, False]))
    assert copied.dtype == np.float32 and copied.asnumpy().tolist() == [1.0, 0.0]
    large = ndarray.array_of(np.array([2**40 + 1]), np.int64)
    assert large.dtype == np.int64 and large.asnumpy().tolist() == [2**40 + 1]
    assert ndarray.memory(large).tolist() == [2**40 + 1]


def test_memories_wait_for_all_of_their_operators() -> None:
    size = 1 << 22
    arrays = [mx.nd.zeros(size) for _ in range(3)]
    for array in arrays:
        for _ in range(5):
            array += 1
    assert [view[-1] for view in ndarray.memories(*arrays)] == [5.0] * 3
