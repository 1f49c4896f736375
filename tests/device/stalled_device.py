"""A device that stands still: it shows what waits for it, however that is done.

MXNet gives each CPU context one thread that runs what is queued for it. An operation that does not
end holds all that is queued behind it, as a long kernel holds the stream of a GPU.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from runtime.mxnet import mx
from tests.device.operator_calls import site

_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class _Context(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("number", ctypes.c_int32)]


@contextmanager
def stalled(context: Any, patience: float = 20.0) -> Iterator[Any]:
    """Let a CPU context, on which nothing else runs, run nothing until the end of this context.

    After ``patience`` seconds the device goes on by itself: a test then fails, and does not hang.
    ``waiting`` is then the line of the project in which this thread was; empty before.
    """
    told, began, thread = threading.Event(), threading.Event(), threading.get_ident()
    stall = SimpleNamespace(waiting="", end=told.set)

    def run(*_: Any) -> None:
        began.set()
        if not told.wait(patience):
            stall.waiting = site(sys._current_frames()[thread])

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
