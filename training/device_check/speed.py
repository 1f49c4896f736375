"""How often Python waits for a device in an update, and how long an update takes."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from parallel.world import LoneWorld
from partial_fc.options import HeadOptions
from runtime import devices
from runtime.gpu_check import NotRun, Wrong, checked
from runtime.mxnet import mx
from training.device_check.subject import Subject, Training

# The functions of MXNet's C interface that return when an array is computed, copied or free.
_OF_AN_ARRAY = (
    "MXNDArrayWaitToRead",
    "MXNDArrayWaitToWrite",
    "MXNDArraySyncCopyToCPU",
    "MXNDArraySyncCopyFromCPU",
)
_OF_ALL = "MXNDArrayWaitAll"
_MOST_WAITS = 1
_WARM_UP, _MEASURED = 5, 20
_LARGE = Subject(
    head=HeadOptions(), network="r50", image_size=112, batch_size=32, classes=50_000,
    embedding_size=512,
)  # fmt: skip


def lines(context: Any) -> Iterator[str]:
    """Check one device."""
    for dtype in ("float32", "float16"):
        yield checked(f"waits {dtype}", partial(_count, context, dtype))
    for dtype in ("float32", "float16"):
        yield checked(f"time {dtype}", partial(_time, context, dtype))


@contextmanager
def counted_waits() -> Iterator[Counter[str]]:
    """Count, by function of the C interface, the waits for arrays that are not the host's.

    A wait before something is written into page-locked memory does not count: it is for the copy
    from there two updates ago, which is long done.
    """
    library, counts = mx.base._LIB, Counter[str]()

    def counting(name: str, function: Any) -> Any:
        def call(*arguments: Any) -> int:
            if name == _OF_ALL or _waits(name, _context(arguments[0])):
                counts[name.removeprefix("MXNDArray")] += 1
            return int(function(*arguments))

        return call

    functions = {name: getattr(library, name) for name in (*_OF_AN_ARRAY, _OF_ALL)}
    for name, function in functions.items():
        setattr(library, name, counting(name, function))
    try:
        yield counts
    finally:
        for name, function in functions.items():
            setattr(library, name, function)


def _waits(name: str, context: Any) -> bool:
    if context.device_type == "cpu_pinned" and name == "MXNDArraySyncCopyFromCPU":
        return False
    return not devices.is_host(context)


def _context(handle: Any) -> Any:
    kind, number = ctypes.c_int(), ctypes.c_int()
    mx.base.check_call(
        mx.base._LIB.MXNDArrayGetContext(handle, ctypes.byref(kind), ctypes.byref(number))
    )
    return mx.Context(mx.Context.devtype2str[kind.value], number.value)


def _count(context: Any, dtype: str) -> str:
    training = Training(Subject(), LoneWorld(), context, dtype)
    for number in range(_WARM_UP):
        training.update(number)
    mx.nd.waitall()
    with counted_waits() as counts:
        for number in range(_MEASURED):
            training.update(_WARM_UP + number)
    each = {name: count / _MEASURED for name, count in sorted(counts.items())}
    shown = ", ".join(f"{name} {count:g}" for name, count in each.items())
    shown = f"{sum(each.values()):g} for the device in an update ({shown or 'none'})"
    if sum(each.values()) > _MOST_WAITS:
        raise Wrong(f"{shown}; at most {_MOST_WAITS} expected")
    return shown


def _time(context: Any, dtype: str) -> str:
    is_gpu = context.device_type == "gpu"
    subject = _LARGE if is_gpu else replace(_LARGE, network="tiny", classes=1000)
    try:
        training = Training(subject, LoneWorld(), context, dtype)
        for number in range(_WARM_UP):
            training.update(number)
        mx.nd.waitall()
        start = time.perf_counter()
        for number in range(_MEASURED):
            training.update(_WARM_UP + number)
        mx.nd.waitall()
    except mx.base.MXNetError as error:
        if "out of memory" in str(error):
            raise NotRun(f"{subject.network} needs more memory than is free") from None
        raise
    each = (time.perf_counter() - start) / _MEASURED
    return (
        f"{1000 * each:.1f} ms for an update of {subject.network} with {subject.batch_size} images "
        f"and {subject.classes} classes, {subject.batch_size / each:.0f} images/s"
    )
