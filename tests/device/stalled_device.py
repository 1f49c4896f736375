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
from typing import Any

from runtime.mxnet import mx
from tests.device.operator_calls import site

_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class _Context(ctypes.Structure):
    """MXNet's ``Context``."""

    _fields_ = [("kind", ctypes.c_int), ("number", ctypes.c_int32)]


class Stall:
    """An operation that holds the thread of a device until its end, or for some seconds.

    ``waiting`` is the line of the project in which the thread that began the stall was after these
    seconds; empty if it ended in time.
    """

    def __init__(self, patience: float) -> None:
        self._patience, self._thread = patience, threading.get_ident()
        self._told, self.began, self.waiting = threading.Event(), threading.Event(), ""

    def run(self, *_: Any) -> None:
        self.began.set()
        if not self._told.wait(self._patience):
            self.waiting = site(sys._current_frames()[self._thread])

    def end(self) -> None:
        """Let the device go on."""
        self._told.set()


@contextmanager
def stalled(context: Any, patience: float = 20.0) -> Iterator[Stall]:
    """Let a CPU context, on which nothing else runs, run nothing until the end of this context.

    After ``patience`` seconds the device goes on by itself: a test then fails, and does not hang.
    """
    stall = Stall(patience)
    function, touched = _Function(stall.run), mx.nd.zeros((1,), ctx=context)
    place = _Context(context.device_typeid, context.device_id)
    mx.nd.waitall()
    mx.base.check_call(
        mx.base._LIB.MXEnginePushSyncND(
            *(function, None, None, ctypes.byref(place), None, 0),
            *(ctypes.byref(touched.handle), 1, None, 0, b"stall"),
        )
    )
    assert stall.began.wait(10)
    try:
        yield stall
    finally:
        stall.end()
        mx.nd.waitall()
