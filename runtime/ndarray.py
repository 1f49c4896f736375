"""Access to MXNet's C interface that its Python interface lacks and kernels on a CPU need.

It calls operators that have no Python function (the backward operators), views the memory of a CPU
array without a copy, so that Numba kernels and MXNet operators work on the same arrays, and queues
kernels among the operators.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime import devices
from runtime.engine import submit, wait_until_all_are_unused, wait_until_unused
from runtime.mxnet import mx

# MXNet's name for the type, as a ``dtype`` of its arrays. NumPy has no bfloat16 and sees its bits.
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
_ELEMENTS: dict[int, tuple[Any, Any]] = {
    8: (np.dtype(np.int64), ctypes.c_int64),
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
        array: a contiguous NDArray in the memory of the CPU, float32, int64 or bfloat16 (its bits
            appear as uint16).
    """
    wait_until_unused(array)
    return _view(array)


def new_array(*shape: int) -> Any:
    """Return a new float32 array on the CPU."""
    return mx.nd.empty(shape, ctx=mx.cpu())


def array_of(values: NDArray[Any], dtype: Any = np.float32) -> Any:
    """Return a new array on the CPU with these values; float32 or int64."""
    array = mx.nd.empty(values.shape, ctx=mx.cpu(), dtype=dtype)
    # No operator knows it yet, so that the engine need not be asked.
    _view(array)[...] = values
    return array


def _view(array: Any) -> NDArray[Any]:
    expected, element = _ELEMENTS[np.dtype(array.dtype).itemsize]
    assert devices.is_host(array.context) and array.dtype == expected, array
    pointer = ctypes.cast(_address(array), ctypes.POINTER(element))
    return np.ctypeslib.as_array(pointer, shape=array.shape)


def addresses(arrays: Sequence[Any]) -> list[int]:
    """Return where the memory of CPU arrays begins, once no queued operator uses them.

    For many arrays, no two of the same memory. They are waited for together: for each wait, MXNet
    wakes up a thread, which then has to get a processor.
    """
    wait_until_all_are_unused(arrays)
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


def queue(
    function: Callable[..., Any], *arguments: Any, writes: Sequence[Any], reads: Sequence[Any] = ()
) -> None:
    """Queue a call on MXNet's engine, as an operator of the arrays in its arguments, and return.

    Args:
        function: see ``runtime.engine.submit``.
        arguments: of the function. It gets views of CPU arrays among them, also in tuples, as
            ``memory`` returns them; nothing may have put them into a layout of oneDNN.
        writes: the arrays that it writes, no two of the same memory and none that it reads as well.
            The others among the arguments are read.
        reads: further arrays that it has to come after the writing of.
    """
    written = {array.handle.value for array in writes}
    found = [array for array in _arrays_in(arguments) if array.handle.value not in written]
    submit(lambda: function(*_viewed(arguments)), [*found, *reads], writes)


def _arrays_in(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [array for item in value for array in _arrays_in(item)]
    return [value] if isinstance(value, mx.nd.NDArray) else []


def _viewed(value: Any) -> Any:
    """The value with views in place of arrays, also in tuples."""
    if isinstance(value, tuple):
        items = map(_viewed, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return _view(value) if isinstance(value, mx.nd.NDArray) else value
