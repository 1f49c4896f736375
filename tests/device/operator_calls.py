"""Every operator call of a process, with the device and the type of each array.

MXNet takes an operator whose arrays lie on two CPU contexts, where on a GPU it would read an
address of the other memory. So the calls are watched where Python hands them to the library: single
operators, whole graphs (``CachedOp``) and backward passes. What happens inside a graph or a
backward pass has the device of its inputs, which MXNet checks itself.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Optional

import numpy as np

from runtime.mxnet import mx
from tests.device import gpu_kernels

_ROOT = Path(__file__).resolve().parents[2]
_HERE = {"operator_calls.py", "host_syncs.py"}
# The host's memory: that of kernels, and what a device, whose number it has, copies from and to.
_HOST_MEMORY = ("cpu(0)", "cpu_pinned(", "cpu_shared(")
# Of whose operators the profiler tells.
_GRAPHS = {"CachedOp", "backward"}
# The operators that may have arrays on two devices.
COPIES = {"_copyto"}
# What no array of a device may be: slow there, and twice as large as it needs to be.
WIDE = {"float64", "int64"}


class Array(NamedTuple):
    """What is known of an array without a look at its numbers."""

    context: str
    dtype: str

    @property
    def is_on_device(self) -> bool:
        """Whether it lies in a device's memory."""
        return not self.context.startswith(_HOST_MEMORY)


class Call(NamedTuple):
    """One call of an operator, a graph or a backward pass."""

    operator: str
    """The operator's name; "CachedOp", "backward"."""
    arrays: tuple[Array, ...]
    """Inputs and outputs."""
    site: str
    """The line of the project that called it."""

    def fault(self) -> str:
        """Return what is wrong with the call, or nothing."""
        contexts = {array.context for array in self.arrays}
        if len(contexts) > 1 and self.operator not in COPIES:
            return f"{self.site}: {self.operator} has arrays on {', '.join(sorted(contexts))}"
        on_device = [array for array in self.arrays if array.is_on_device]
        wide = {array.dtype for array in on_device} & WIDE
        if wide:
            return f"{self.site}: {self.operator} has a {wide.pop()} array on {contexts.pop()}"
        if on_device and self.operator not in gpu_kernels.listed() | _GRAPHS:
            return f"{self.site}: {self.operator} has no kernel for GPUs"
        if on_device and self.operator in gpu_kernels.WAITING:
            return f"{self.site}: {self.operator} waits inside its kernel for GPUs"
        return ""


@contextmanager
def watched_operators() -> Iterator[list[Call]]:
    """Collect the calls within the context, and refuse those that would be wrong on a GPU.

    Raises:
        AssertionError: at the call, if its arrays lie on several devices or are too wide for one,
            or if the operator has no kernel for GPUs, or one that waits for the GPU.
    """
    calls: list[Call] = []

    def note(operator: str, handles: Sequence[Any]) -> None:
        call = Call(operator, tuple(map(describe, handles)), site())
        calls.append(call)
        assert not call.fault(), call.fault()

    def invoke(original: Any, *arguments: Any) -> int:
        status: int = original(*arguments)
        if status == 0:
            operator, num_inputs, inputs, num_outputs, outputs = arguments[:5]
            found = [*inputs[: num_inputs.value], *_pointees(outputs, num_outputs)]
            note(_name_of(operator.value), found)
        return status

    def invoke_graph(original: Any, *arguments: Any) -> int:
        status: int = original(*arguments)
        if status == 0:
            _, num_inputs, inputs, num_outputs, outputs = arguments[:5]
            note("CachedOp", [*inputs[: num_inputs.value], *_pointees(outputs, num_outputs)])
        return status

    def backward(original: Any, *arguments: Any) -> int:
        _, heads, gradients = arguments[:3]
        note("backward", [*heads, *(one for one in gradients or () if one)])
        return int(original(*arguments))

    replaced = {
        "MXImperativeInvokeEx": invoke,
        "MXInvokeCachedOpEx": invoke_graph,
        "MXAutogradBackwardEx": backward,
    }
    with wrapped_functions(replaced):
        yield calls


@contextmanager
def wrapped_functions(wrappers: dict[str, Callable[..., int]]) -> Iterator[None]:
    """Put a function around each of these functions of MXNet's library.

    It is called with the original before the arguments, and returns the status.
    """
    library = mx.base._LIB
    before = {name: getattr(library, name) for name in wrappers}

    def around(name: str) -> Callable[..., int]:
        return lambda *arguments: wrappers[name](before[name], *arguments)

    for name in wrappers:
        setattr(library, name, around(name))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(library, name, function)


def describe(handle: Any) -> Array:
    """Return device and type of the array with this handle, a ``c_void_p`` or its value."""
    pointer = handle if isinstance(handle, ctypes.c_void_p) else ctypes.c_void_p(handle)
    kind, number, dtype = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    library, check = mx.base._LIB, mx.base.check_call
    check(library.MXNDArrayGetContext(pointer, ctypes.byref(kind), ctypes.byref(number)))
    check(library.MXNDArrayGetDType(pointer, ctypes.byref(dtype)))
    device = mx.Context.devtype2str.get(kind.value, "none")
    types = mx.nd.ndarray._DTYPE_MX_TO_NP
    known = types.get(dtype.value)
    return Array(f"{device}({number.value})", np.dtype(known).name if known else "none")


def site(frame: Optional[FrameType] = None) -> str:
    """Return file and line of the innermost call from the project, without those of the tools."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if _ROOT in path.parents and path.name not in _HERE and ".venv" not in path.parts:
            return f"{path.relative_to(_ROOT).as_posix()}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown"


def _pointees(reference: Any, count: Any) -> list[Any]:
    """Return the handles behind a reference to an array of them, and one to their number."""
    handles = ctypes.cast(reference._obj, ctypes.POINTER(ctypes.c_void_p))
    return list(handles[: count._obj.value])


def _name_of(operator: int) -> str:
    name = ctypes.c_char_p()
    function = mx.base._LIB.MXSymbolGetAtomicSymbolName
    mx.base.check_call(function(ctypes.c_void_p(operator), ctypes.byref(name)))
    assert name.value is not None, operator
    return name.value.decode()
