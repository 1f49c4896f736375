"""Calls on MXNet's engine, which runs them among its operators, on its thread for operators.

An operator is queued with the arrays that it reads and writes, and runs when those before it on
these arrays have run. A call of Python is queued in the same way.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, Optional

from runtime.mxnet import mx


def wait_until_unused(array: Any) -> None:
    """Wait until every queued operator that reads or writes the array has run."""
    mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(array.handle))


# What the engine calls is to outlive every operator.
_nothing = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: None)


def wait_until_all_are_unused(arrays: Sequence[Any]) -> None:
    """Queue an operator that writes all of these arrays, by what it says, and wait for it."""
    if not arrays:
        return
    _push(_nothing, None, (), arrays)
    mx.base.check_call(mx.base._LIB.MXNDArrayWaitToRead(arrays[0].handle))


def _push(call: Any, number: Optional[int], reads: Sequence[Any], writes: Sequence[Any]) -> None:
    """Have the engine call a C function once what was queued before on these arrays has run.

    The function gets ``number``, which is not 0, as a pointer.
    """
    # An operator would wait for itself.
    handles = [array.handle.value for array in (*reads, *writes)]
    assert len(set(handles)) == len(handles)
    none = ctypes.c_void_p()
    mx.base.check_call(
        mx.base._LIB.MXEnginePushSyncND(
            *(call, ctypes.c_void_p(number), none, (ctypes.c_int * 2)(mx.cpu().device_typeid, 0)),
            *(*_counted(reads), *_counted(writes), none, ctypes.c_int(0), none),
        )
    )


def _counted(arrays: Sequence[Any]) -> tuple[Any, ctypes.c_int]:
    """Handles for the engine, and how many there are."""
    handles = (array.handle for array in arrays)
    return (ctypes.c_void_p * len(arrays))(*handles), ctypes.c_int(len(arrays))


# Calls that the engine's thread has not taken yet, by number: what it calls, and where the result
# goes, if anyone waits for it.
_calls: dict[int, tuple[Callable[[], Any], Optional[futures.Future[Any]]]] = {}
# The engine hands the number on as a pointer, of which 0 would be none.
_numbers = itertools.count(1)
# What queued calls have raised.
_failures: list[BaseException] = []
_thread = threading.local()


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
def _take_call(_: Any, number: int) -> None:
    # Nothing is left of a call that Ctrl-C took back.
    function, result = _calls.pop(number, (None, None))
    if function is None:
        return
    _thread.is_engine = True
    try:
        value = function()
        if result is not None:
            result.set_result(value)
    except BaseException as error:
        if result is not None:
            result.set_exception(error)
        else:
            _failures.append(error)


def run_on_engine(call: Callable[[], Any]) -> Any:
    """Return what ``call`` returns, or raise what it raises, run by MXNet's thread for operators.

    OpenMP's threads belong to the thread that started them. Those of the engine's thread spin for
    some milliseconds after each operator, to take the next one at once. A kernel that is run by
    this thread has them, at once; the threads of another one would wait for their processors.

    Any number of threads may call it; a ``call`` that does runs the other itself, at once.
    """
    if getattr(_thread, "is_engine", False):
        return call()
    result: futures.Future[Any] = futures.Future()
    number = next(_numbers)
    _calls[number] = call, result
    try:
        _push(_take_call, number, (), ())
        return result.result()
    finally:
        # Ctrl-C may come anywhere above. What the engine has not taken by then it never will, and
        # what it has is waited for: what a call works on is not to be freed before it ends.
        if _calls.pop(number, None) is None:
            futures.wait([result])


def submit(function: Callable[[], Any], reads: Sequence[Any], writes: Sequence[Any]) -> None:
    """Queue a call as an operator of arrays, and return.

    To hand each kernel of a step over and to wait for its end takes two threads that wake up, of
    which one has slept since the product before: a tenth of a millisecond or two, longer than a
    small kernel runs. A queue is handed over while its first operators run.

    Args:
        function: it runs on the engine's thread (see ``run_on_engine``), once all that was queued
            before on these arrays has run, and waits for nothing that is on the engine. What it
            raises is raised by the next call of this function or of ``settle``.
        reads: the arrays that it reads, or has to come after the writing of.
        writes: those that it writes; no two of all of them on the same memory.
    """
    _raise_failure()
    number = next(_numbers)
    _calls[number] = function, None
    try:
        _push(_take_call, number, reads, writes)
    except BaseException:
        _calls.pop(number, None)
        raise


def settle(array: Any) -> None:
    """Wait until every call and operator that uses the array has run."""
    wait_until_unused(array)
    _raise_failure()


def _raise_failure() -> None:
    if _failures:
        raise _failures.pop(0)


# Seconds. A kernel takes milliseconds; what has not run by then waits for a rank that has ended.
_END = 5.0


@atexit.register
def _run_queue_to_its_end() -> None:
    """The engine can call Python no more once the interpreter has ended."""
    deadline = time.monotonic() + _END
    while _calls and time.monotonic() < deadline:
        time.sleep(0.001)
