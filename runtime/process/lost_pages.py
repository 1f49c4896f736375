"""Reports a memory-mapped file that is cut off while a program reads it.

To read a page of a map that is no longer in its file raises SIGBUS, which ends a process without a
word. A check before each access could not prevent that: the file may be cut off after the check. So
a handler of the signal names the file and ends the process. The kernel runs it in the thread that
has read the page, and would repeat the signal for ever if it returned.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Any, Optional

_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
# signal.h: offset of si_addr in the siginfo_t that the handler gets, on 64-bit systems.
_SA_SIGINFO, _ADDRESS = 4, 16


class _SignalAction(ctypes.Structure):
    """``struct sigaction`` of Linux's C libraries."""

    _fields_ = (
        ("handler", _HANDLER),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def report(end: Callable[[str], object], status: int) -> None:
    """Have this process end with one line when a page of a mapped file is lost.

    Args:
        end: prints a line and ends the process.
        status: of the process if it cannot print.
    """

    def handle(_: int, information: Optional[int], __: Any) -> None:
        try:
            address = ctypes.c_size_t.from_address((information or 0) + _ADDRESS).value
            end(
                f"{_file_at(address)} was cut off while it was in use, or its disk fails or is "
                "full (SIGBUS); make the file complete and start the same command again"
            )
        finally:
            os._exit(status)

    handler = _HANDLER(handle)
    # For as long as the process runs.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handler))
    action = _SignalAction(handler, flags=_SA_SIGINFO)
    ctypes.CDLL(None).sigaction(int(signal.SIGBUS), ctypes.byref(action), None)


def _file_at(address: int) -> str:
    """Return the path of the file that is mapped at an address, see proc(5)."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            span, *_, name = [*line.rstrip("\n").split(None, 5), "memory"][:6]
            start, stop = (int(word, 16) for word in span.split("-"))
            if start <= address < stop:
                return name
    return "a mapped file"
