"""Every operator call of a process, with each array's device and type; and a device that stalls.

MXNet takes an operator whose arrays are on two CPU contexts, where on a GPU it would read an
address of the other memory. So the calls are watched where Python hands them to the library: single
operators, whole graphs (``CachedOp``) and backward passes. What happens inside a graph or a
backward pass has the device of its inputs, which MXNet checks itself.

``gpu_kernels.txt`` lists the operators of MXNet 1.9.1 that register a function for GPUs in its
sources (``FCompute<gpu>``, ``FStatefulCompute<gpu>``, ``CreateOp<gpu>``). An operator without one
works on every CPU and fails at its first call on a GPU.

MXNet gives each CPU context one thread that runs what is queued for it. An operation that does not
end holds all that is queued behind it, as a long kernel holds the stream of a GPU.
"""

import ctypes
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest

from runtime.mxnet import mx

# The first line is a title.
WITH_GPU_KERNEL = {*Path(__file__).with_name("gpu_kernels.txt").read_text().splitlines()[1:]}
# The host's memory: that of kernels, and what a device, whose number it has, copies from and to.
_HOST_MEMORY = ("cpu(0)", "cpu_pinned(", "cpu_shared(")
# What no array of a device may be: slow there, and twice as large as it needs to be.
_WIDE = {"float64", "int64"}
WAITING = set(
    "gather_nd _contrib_boolean_mask _npx_nonzero _npi_unique _npi_bincount _npi_percentile "
    "_npx_constraint_check _npi_boolean_mask_assign_scalar _npi_boolean_mask_assign_tensor "
    "_npi_multinomial _adamw_update _mp_adamw_update _multi_adamw_update "
    "_multi_mp_adamw_update".split()
)
"""Operators that wait for the GPU inside, to look at a number (``cudaStreamSynchronize``)."""


def fault(operator: str, arrays: Sequence[tuple[str, str]]) -> str:
    """Return what is wrong with a call on arrays of these contexts and types, or nothing."""
    contexts = {context for context, _ in arrays}
    if len(contexts) > 1 and operator != "_copyto":
        return f"{operator} has arrays on {', '.join(sorted(contexts))}"
    on_device = [dtype for context, dtype in arrays if not context.startswith(_HOST_MEMORY)]
    if wide := _WIDE.intersection(on_device):
        return f"{operator} has a {wide.pop()} array on {contexts.pop()}"
    if on_device and operator not in WITH_GPU_KERNEL | {"CachedOp", "backward"}:
        return f"{operator} has no kernel for GPUs"
    if on_device and operator in WAITING:
        return f"{operator} waits inside its kernel for GPUs"
    return ""


@contextmanager
def watched_operators() -> Iterator[set[str]]:
    """Collect the contexts of arrays of calls, and fail at calls that would be wrong on a GPU."""
    contexts: set[str] = set()

    def note(operator: str, handles: Sequence[Any]) -> None:
        arrays = [_describe(handle) for handle in handles]
        contexts.update(context for context, _ in arrays)
        wrong = fault(operator, arrays)
        assert not wrong, wrong

    def invoke(original: Any, *arguments: Any, name: Optional[str] = None) -> int:
        status: int = original(*arguments)
        if status == 0:
            operator, num_inputs, inputs, num_outputs, outputs = arguments[:5]
            pointers = ctypes.cast(outputs._obj, ctypes.POINTER(ctypes.c_void_p))
            found = [*inputs[: num_inputs.value], *pointers[: num_outputs._obj.value]]
            note(name or _name_of(operator.value), found)
        return status

    def backward(original: Any, *arguments: Any) -> int:
        _, heads, gradients = arguments[:3]
        note("backward", [*heads, *(one for one in gradients or () if one)])
        return int(original(*arguments))

    library = mx.base._LIB
    names = ("MXImperativeInvokeEx", "MXInvokeCachedOpEx", "MXAutogradBackwardEx")
    wrappers: tuple[Any, ...] = (invoke, partial(invoke, name="CachedOp"), backward)
    with pytest.MonkeyPatch.context() as patch:
        for function, wrapper in zip(names, wrappers):
            patch.setattr(library, function, partial(wrapper, getattr(library, function)))
        yield contexts


def _describe(handle: Any) -> tuple[str, str]:
    pointer = handle if isinstance(handle, ctypes.c_void_p) else ctypes.c_void_p(handle)
    kind, number, dtype = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    library, check = mx.base._LIB, mx.base.check_call
    check(library.MXNDArrayGetContext(pointer, ctypes.byref(kind), ctypes.byref(number)))
    check(library.MXNDArrayGetDType(pointer, ctypes.byref(dtype)))
    known = mx.nd.ndarray._DTYPE_MX_TO_NP.get(dtype.value)
    device = mx.Context.devtype2str.get(kind.value, "none")
    return f"{device}({number.value})", np.dtype(known).name if known else "none"


def _name_of(operator: int) -> str:
    name = ctypes.c_char_p()
    function = mx.base._LIB.MXSymbolGetAtomicSymbolName
    mx.base.check_call(function(ctypes.c_void_p(operator), ctypes.byref(name)))
    assert name.value is not None, operator
    return name.value.decode()


_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class _Context(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("number", ctypes.c_int32)]


@contextmanager
def stalled(context: Any, patience: float = 20.0) -> Iterator[Any]:
    """Let a CPU context, on which nothing else runs, run nothing until the end of this context.

    After ``patience`` seconds the device goes on by itself: a test then fails, and does not hang.
    ``waiting`` is then the stack of this thread; empty before.
    """
    told, began, thread = threading.Event(), threading.Event(), threading.get_ident()
    stall = SimpleNamespace(waiting="", end=told.set)

    def run(*_: Any) -> None:
        began.set()
        if not told.wait(patience):
            stall.waiting = "".join(traceback.format_stack(sys._current_frames()[thread]))

    function, touched = _Function(run), mx.nd.zeros((1,), ctx=context)
    place, handle = _Context(context.device_typeid, context.device_id), touched.handle
    mx.nd.waitall()
    queued = (function, None, None, ctypes.byref(place), None, 0, ctypes.byref(handle), 1, None, 0)
    mx.base.check_call(mx.base._LIB.MXEnginePushSyncND(*queued, b"stall"))
    assert began.wait(10)
    try:
        yield stall
    finally:
        told.set()
        mx.nd.waitall()
