"""Access to MXNet's C interface that its Python interface lacks and kernels on a CPU need.

It calls operators that have no Python function (the backward operators), and views the memory of a
CPU array without a copy, so that Numba kernels and MXNet operators work on the same arrays. And it
queues calls of Python on MXNet's engine: an operator is queued with the arrays that it reads and
writes, and runs when those before it on these arrays have run; a call is queued in the same way,
and runs on the engine's thread for operators.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from runtime import devices
from runtime.mxnet import mx

# MXNet's name for the type, as a ``dtype`` of its arrays. NumPy has no bfloat16 and sees its bits.
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])


@functools.lru_cache(maxsize=None)
def _operator(name: str) -> int:
    handle = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.NNGetOpHandle(mx.base.c_str(name), ctypes.byref(handle)))
    assert handle.value is not None, name
    return handle.value


def invoke(name: str, inputs: Sequence[Any], params: Mapping[str, Any], out: list[Any]) -> None:
    """Queue the operator ``name`` on MXNet's engine; the results go into the arrays of ``out``."""
    mx._ctypes.ndarray._imperative_invoke(
        _operator(name), list(inputs), list(params), list(params.values()), out, False, True
    )


def memory(array: Any) -> NDArray[Any]:
    """Return a writable NumPy view of a CPU array's memory, once no queued operator uses it.

    The view is valid as long as the array lives and until the next operator on it is queued.

    Args:
        array: a contiguous NDArray in the memory of the CPU, float32, int64 or bfloat16 (its bits
            appear as uint16).
    """
    settle(array)
    return _view(array)


def array_of(values: NDArray[Any], dtype: Any = np.float32) -> Any:
    """Return a new array on the CPU with these values; float32 or int64."""
    array = mx.nd.empty(values.shape, ctx=mx.cpu(), dtype=dtype)
    # No operator knows it yet, so that the engine need not be asked.
    _view(array)[...] = values
    return array


def _view(array: Any) -> NDArray[Any]:
    assert devices.is_host(array.context), array
    dtype = np.dtype(np.uint16 if array.dtype == BFLOAT16 else array.dtype)
    content = (ctypes.c_char * (array.size * dtype.itemsize)).from_address(_address(array))
    return np.ndarray(array.shape, dtype, content)


def addresses(arrays: Sequence[Any]) -> list[int]:
    """Return where the memory of CPU arrays begins, once no queued operator uses them.

    For many arrays, no two of the same memory. They are waited for together, by an operator that
    says that it writes them all: for each wait, MXNet wakes up a thread, which then has to get a
    processor.
    """
    if arrays:
        _push(0, (), arrays)
        mx.base.check_call(mx.base._LIB.MXNDArrayWaitToRead(arrays[0].handle))
    return [*map(_address, arrays)]


def _address(array: Any) -> int:
    found = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(found)))
    assert found.value is not None, array
    return found.value


def copy_to_host(array: Any, copy: NDArray[Any]) -> None:
    """Copy an array of any context into ``copy``, contiguous, of its shape and type; waits."""
    assert copy.shape == array.shape and copy.dtype == array.dtype and copy.flags.c_contiguous
    address = copy.ctypes.data_as(ctypes.c_void_p)
    size = ctypes.c_size_t(copy.size)
    mx.base.check_call(mx.base._LIB.MXNDArraySyncCopyToCPU(array.handle, address, size))


def _push(number: int, reads: Sequence[Any], writes: Sequence[Any]) -> None:
    """Have the engine make the call of a number once what was queued on these arrays has run."""
    # An operator would wait for itself.
    handles = [array.handle.value for array in (*reads, *writes)]
    assert len(set(handles)) == len(handles)
    none = ctypes.c_void_p()
    mx.base.check_call(
        mx.base._LIB.MXEnginePushSyncND(
            *(_take_call, ctypes.c_void_p(number), none),
            (ctypes.c_int * 2)(mx.cpu().device_typeid, 0),
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
# The engine hands the number on as a pointer.
_numbers = itertools.count(1)
# What queued calls have raised.
_failures: list[BaseException] = []
_thread = threading.local()


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
def _take_call(_: Any, number: int) -> None:
    # Nothing is left of a call that Ctrl-C took back, and 0 has none.
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
        _push(number, (), ())
        return result.result()
    finally:
        # Ctrl-C may come anywhere above. What the engine has not taken by then it never will, and
        # what it has is waited for: what a call works on is not to be freed before it ends.
        if _calls.pop(number, None) is None:
            futures.wait([result])


def queue(
    function: Callable[..., Any], *arguments: Any, writes: Sequence[Any], reads: Sequence[Any] = ()
) -> None:
    """Queue a call on MXNet's engine, as an operator of the arrays in its arguments, and return.

    To hand each kernel of a step over and to wait for its end takes two threads that wake up, of
    which one has slept since the product before: a tenth of a millisecond or two, longer than a
    small kernel runs. A queue is handed over while its first operators run.

    Args:
        function: it runs on the engine's thread (see ``run_on_engine``), once all that was queued
            before on these arrays has run, and waits for nothing that is on the engine. What it
            raises is raised by the next call of this function or of ``settle``.
        arguments: of the function. It gets views of CPU arrays among them, also in tuples, as
            ``memory`` returns them; nothing may have put them into a layout of oneDNN.
        writes: the arrays that it writes, no two of the same memory and none that it reads as well.
            The others among the arguments are read.
        reads: further arrays that it has to come after the writing of.
    """
    _raise_failure()
    written = {array.handle.value for array in writes}
    found = [array for array in _arrays_in(arguments) if array.handle.value not in written]
    number = next(_numbers)
    _calls[number] = lambda: function(*_viewed(arguments)), None
    try:
        _push(number, [*found, *reads], writes)
    except BaseException:
        _calls.pop(number, None)
        raise


def _arrays_in(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [array for item in value for array in _arrays_in(item)]
    return [value] if isinstance(value, mx.nd.NDArray) else []


def _viewed(value: Any) -> Any:
    """Return the value with views in place of arrays, also in tuples."""
    if isinstance(value, tuple):
        items = map(_viewed, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return _view(value) if isinstance(value, mx.nd.NDArray) else value


def settle(array: Any) -> None:
    """Wait until every queued call and operator that reads or writes the array has run."""
    mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(array.handle))
    _raise_failure()


def _raise_failure() -> None:
    if _failures:
        raise _failures.pop(0)


# Seconds. A kernel takes milliseconds; what has not run by then waits for a rank that has ended.
_END = 5.0


@atexit.register
def _run_queue_to_its_end() -> None:
    """Wait for the queue: the engine cannot call Python after the interpreter has ended."""
    deadline = time.monotonic() + _END
    while _calls and time.monotonic() < deadline:
        time.sleep(0.001)
