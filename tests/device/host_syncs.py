"""Where a process waits for a device: every blocking call of MXNet's library, by its place.

A wait for a device costs the time in which nothing is queued for it, and a GPU that has nothing
queued idles. The calls are counted where Python hands them to the library. What counts:

- a wait for an array of a device, a copy of it into NumPy, and a wait for everything;
- a copy from NumPy into an array of a device, which MXNet does not queue: it blocks;
- the same waits on an array of the host that was copied from a device.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.device.operator_calls import describe, site, wrapped_functions

_WAITS = ("MXNDArrayWaitToRead", "MXNDArrayWaitToWrite", "MXNDArraySyncCopyToCPU")
_VIEWS = {"MXNDArraySlice": 3, "MXNDArrayAt": 2, "MXNDArrayReshape64": 4, "MXNDArrayReshape": 3}


class HostSync(NamedTuple):
    """A call for which the host waits for a device."""

    function: str
    """Of MXNet's library."""
    site: str
    """The line of the project that called it."""
    thread: int
    """The thread that waited, as ``threading.get_ident`` names it."""


class _ReadBack:
    """The arrays of the host whose numbers come from a device, by their handles."""

    def __init__(self) -> None:
        self._handles: set[int] = set()

    def __contains__(self, handle: Any) -> bool:
        return _value(handle) in self._handles

    def wrappers(self) -> dict[str, Any]:
        """Return what follows the copies, the views and the ends of such arrays."""
        return {
            "MXImperativeInvokeEx": self._invoke,
            "MXNDArrayFree": self._free,
            **{name: self._view(place) for name, place in _VIEWS.items()},
        }

    def _invoke(self, original: Any, *arguments: Any) -> int:
        status: int = original(*arguments)
        if status == 0:
            _, num_inputs, inputs, num_outputs, outputs = arguments[:5]
            known = any(
                one in self or describe(one).is_on_device for one in inputs[: num_inputs.value]
            )
            handles = ctypes.cast(outputs._obj, ctypes.POINTER(ctypes.c_void_p))
            for handle in handles[: num_outputs._obj.value]:
                if not describe(handle).is_on_device:
                    (self._handles.add if known else self._handles.discard)(_value(handle))
        return status

    def _free(self, original: Any, handle: Any) -> int:
        self._handles.discard(_value(handle))
        return int(original(handle))

    def _view(self, place: int) -> Any:
        def view(original: Any, *arguments: Any) -> int:
            status: int = original(*arguments)
            if status == 0 and arguments[0] in self:
                self._handles.add(_value(arguments[place]._obj))
            return status

        return view


@contextmanager
def counted_host_syncs() -> Iterator[list[HostSync]]:
    """Collect the calls within the context that wait for a device, in their order."""
    syncs: list[HostSync] = []
    read_back = _ReadBack()

    def note(function: str) -> None:
        syncs.append(HostSync(function, site(), threading.get_ident()))

    def wait(name: str) -> Any:
        def call(original: Any, handle: Any, *arguments: Any) -> int:
            if handle in read_back or describe(handle).is_on_device:
                note(name)
            return int(original(handle, *arguments))

        return call

    def upload(original: Any, handle: Any, *arguments: Any) -> int:
        if describe(handle).is_on_device:
            note("MXNDArraySyncCopyFromCPU")
        return int(original(handle, *arguments))

    def wait_for_all(original: Any) -> int:
        note("MXNDArrayWaitAll")
        return int(original())

    wrappers = {
        **read_back.wrappers(),
        **{name: wait(name) for name in _WAITS},
        "MXNDArraySyncCopyFromCPU": upload,
        "MXNDArrayWaitAll": wait_for_all,
    }
    with wrapped_functions(wrappers):
        yield syncs


def _value(handle: Any) -> int:
    value = handle.value if isinstance(handle, ctypes.c_void_p) else handle
    return int(value or 0)
