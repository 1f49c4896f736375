"""Access to MXNet's C interface that its Python interface lacks and kernels on a CPU need.

It calls operators that have no Python function (the backward operators), views the memory of a CPU
array without a copy, so that Numba kernels and MXNet operators work on the same arrays, and runs
kernels on the threads of the operators.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime import devices
from runtime.mxnet import mx

# MXNet's name for the type, as a ``dtype`` of its arrays. NumPy has no bfloat16 and sees its bits.
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
_ELEMENTS: dict[int, tuple[Any, Any]] = {
    4: (np.dtype(np.float32), ctypes.c_float),
    2: (BFLOAT16, ctypes.c_uint16),
}


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
        array: a contiguous NDArray in the memory of the CPU, float32 or bfloat16 (its bits appear
            as uint16).
    """
    expected, element = _ELEMENTS[np.dtype(array.dtype).itemsize]
    assert devices.is_host(array.context) and array.dtype == expected, array
    wait_until_unused(array)
    pointer = ctypes.cast(_address(array), ctypes.POINTER(element))
    return np.ctypeslib.as_array(pointer, shape=array.shape)


def addresses(arrays: Sequence[Any]) -> list[int]:
    """Return where the memory of CPU arrays begins, once no queued operator uses them.

    For many arrays, no two of the same memory. They are waited for together: for each wait, MXNet
    wakes up a thread, which then has to get a processor.
    """
    _wait_until_all_are_unused(arrays)
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


def is_on_host(array: Any) -> bool:
    """Whether ``memory`` can view this array, and its numbers are float32."""
    return devices.is_host(array.context) and bool(array.dtype == np.float32)


def wait_until_unused(array: Any) -> None:
    """Wait until every queued operator that reads or writes the array has run."""
    mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(array.handle))


# What the engine calls is to outlive every operator.
_nothing = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: None)


def _wait_until_all_are_unused(arrays: Sequence[Any]) -> None:
    """Queue an operator that writes all of these arrays, by what it says, and wait for it."""
    count = len(arrays)
    if not count:
        return
    # An operator would wait for itself.
    assert len({array.handle.value for array in arrays}) == count
    handles = (ctypes.c_void_p * count)(*(array.handle for array in arrays))
    context = (ctypes.c_int * 2)(mx.cpu().device_typeid, 0)
    none = ctypes.c_void_p()
    mx.base.check_call(
        mx.base._LIB.MXEnginePushSyncND(
            *(_nothing, none, none, context, none, ctypes.c_int(0), handles, ctypes.c_int(count)),
            *(none, ctypes.c_int(0), none),
        )
    )
    mx.base.check_call(mx.base._LIB.MXNDArrayWaitToRead(arrays[0].handle))


# Calls that the engine's thread has not taken yet, by number: what to call, and its result.
_calls: dict[int, tuple[Callable[[], Any], futures.Future[Any]]] = {}
# The engine hands the number on as a pointer, of which 0 would be none.
_numbers = itertools.count(1)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
def _take_call(_: Any, number: int) -> None:
    # Nothing is left of a call that Ctrl-C took back.
    call, result = _calls.pop(number, (None, None))
    if call is None or result is None:
        return
    try:
        result.set_result(call())
    except BaseException as error:
        result.set_exception(error)


def run_on_engine(call: Callable[[], Any]) -> Any:
    """Return what ``call`` returns, or raise what it raises, run by MXNet's thread for operators.

    OpenMP's threads belong to the thread that started them. Those of the engine's thread spin for
    some milliseconds after each operator, to take the next one at once. A kernel that is run by
    this thread has them, at once; the threads of another one would wait for their processors.

    Any number of threads may call it, but no ``call``: it would wait for itself.
    """
    result: futures.Future[Any] = futures.Future()
    number = next(_numbers)
    context = (ctypes.c_int * 2)(mx.cpu().device_typeid, 0)
    none = ctypes.c_void_p()
    _calls[number] = call, result
    try:
        mx.base.check_call(
            mx.base._LIB.MXEnginePushSync(
                *(_take_call, ctypes.c_void_p(number), none, context, none, ctypes.c_int(0)),
                *(none, ctypes.c_int(0), none, ctypes.c_int(0), none),
            )
        )
        return result.result()
    finally:
        # Ctrl-C may come anywhere above. What the engine has not taken by then it never will, and
        # what it has is waited for: what a call works on is not to be freed before it ends.
        if _calls.pop(number, None) is None:
            futures.wait([result])
