"""Kernels for the CPU: decorators that compile them with Numba, and what several kernels call.

**Compiling** takes seconds, so Numba caches compiled kernels, next to the source or in the user's
home, or in ``NUMBA_CACHE_DIR``. Where it can write none of these, each process compiles anew.
Numba takes a cached kernel for current as long as the kernel's own file is. But the functions that
it calls are compiled into it, and so are constants of its module: an update of the toolkit that
changes such a function alone would go on with the old one. So what a kernel is made of counts, too.

**Sums** are added up in an order that is written down. A compiler can vectorize a plain sum only if
it may reorder it, and then it orders it as it likes. Numba has a parallel kernel optimized once
more before it is cached, so that the process that compiles it would get other bits than all later
ones. So the sums of ``LANES`` lanes are added up side by side, in the end the lanes, in pairs, and
then what has filled no lanes.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import Any

from runtime import environment

# Numba reads its variables while it is imported, and no other module imports it. It imports SciPy
# for products of matrices, which no kernel has: most of a second, and a thread, in every rank.
environment.prepare()
with environment.leave_out("scipy"):
    import numba
    import numpy as np
    from llvmlite import ir
    from numba import extending
    from numba.core import cgutils, config
    from numba.core.registry import cpu_target

    # Numba imports what it has for NumPy's functions here; otherwise with the first kernel.
    cpu_target.target_context.refresh()

# The range of a kernel's loop that is divided among threads.
prange = numba.prange
types = numba.types
# A decorator of what a kernel compiles for a function, which has to be in the same file.
overload = extending.overload


def _compiler(**options: Any) -> Callable[[Any], Any]:
    """A decorator that compiles a function, and caches the result if any folder can be written."""

    def decorate(function: Any) -> Any:
        try:
            return _cached(function, options)
        except RuntimeError:
            return numba.njit(**options)(function)

    return decorate


def _cached(function: Any, options: dict[str, Any]) -> Any:
    kernel = numba.njit(cache=True, **options)(function)
    # Numba 0.60, which is pinned: it compares the stamp of the index file with this one.
    file = kernel._cache._cache_file
    file._source_stamp = (file._source_stamp, _compiled_into(function))
    # A full disk leaves a kernel out of the cache, and does not end the run. (On Windows, where
    # processes get in each other's way, Numba itself ignores such errors here.)
    kernel._cache._guard_against_spurious_io_errors = lambda: suppress(OSError)
    return kernel


def _compiled_into(function: Any) -> list[Any]:
    """Return what is compiled into a function: constants, and the files of what it calls."""
    parts: list[Any] = []
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        # Kernels call no functions of Python but overloaded ones. Intrinsics are in this file,
        # next to the only functions that call them.
        called = getattr(value, "py_func", value)
        if isinstance(value, _CONSTANTS):
            parts.append((name, repr(value)))
        elif isinstance(called, FunctionType):
            # As Numba knows the kernel's own file.
            found = os.stat(called.__code__.co_filename)
            parts += [found.st_mtime, found.st_size, *_compiled_into(called)]
    return parts


_CONSTANTS = (bool, int, float, str, tuple, np.generic)


# Products may be fused with sums. Infinities and NaN keep their meaning, so that a diverged run is
# detected. Nothing is reordered (see above).
_FAST = {"contract", "nsz"}


@functools.lru_cache(maxsize=None)
def _launch() -> None:
    """Load Numba's layer over OpenMP.

    It allows the thread that loads it threads below threads. On that of MXNet's engine, operators
    would get some, more than there are processors, for a tenth of a training step.
    """
    loader = threading.Thread(target=lambda: numba.set_num_threads(config.NUMBA_NUM_THREADS))
    loader.start()
    loader.join()


def parallel_kernel(function: Any) -> Callable[..., Any]:
    """A kernel whose prange is divided among the threads of this rank that MXNet's operators use.

    MXNet's engine calls it, and the caller waits (see ``runtime.ndarray.queue`` for those who have
    others to queue); arguments are positional.
    """
    # Without Python's lock: Python queues what follows meanwhile.
    kernel = _compiler(parallel=True, fastmath=_FAST, nogil=True)(function)

    @functools.wraps(function)
    def call(*arrays: Any) -> Any:
        _launch()
        # Loaders of images use this module and do without MXNet.
        from runtime.ndarray import run_on_engine

        return run_on_engine(lambda: kernel(*arrays))

    return call


# A function of single numbers, compiled into the kernels that call it.
inlined = _compiler(fastmath=_FAST, inline="always")
# The same for numbers that are to be equal on every processor: nothing is fused.
exactly_inlined = _compiler(inline="always")
# A kernel of one thread that releases Python's lock while it runs.
unlocked_kernel = _compiler(nogil=True)


@extending.intrinsic
def _pointer(context: Any, address: Any) -> Any:
    """A pointer to an address (``uint64``), in a kernel."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], target.get_value_type(signature.return_type))

    return types.voidptr(types.uint64), generate


@exactly_inlined
def array_at(address, size, dtype):  # type: ignore[no-untyped-def]
    """A view [size] of numbers of a type in memory, in a kernel: it can take many arrays at once.

    ``address`` is uint64; ``dtype`` one of NumPy's types, such as ``np.int32``.
    """
    return numba.carray(_pointer(address), (size,), dtype)


_CACHE_LINE = 64


@extending.intrinsic
def _prefetch(context: Any, array: Any, row: Any, column: Any) -> Any:
    """Request the cache line of an entry, in a kernel; nothing waits for it."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        view = target.make_array(kind)(target, builder, arguments[0])
        entry = cgutils.get_item_pointer(target, builder, kind, view, arguments[1:])
        number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        # For reading, into all caches, data: the numbers of LLVM's ``llvm.prefetch``.
        numbers = (ir.Constant(number, value) for value in (0, 3, 1))
        form = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        request = builder.module.declare_intrinsic("llvm.prefetch.p0i8", (), form)
        builder.call(request, [builder.bitcast(entry, byte), *numbers])
        return target.get_dummy_value()

    return types.none(array, types.intp, types.intp), generate


# The numbers that are requested together where a kernel goes through several arrays.
PART = 128


@inlined
def prefetch(array, row, start, stop):  # type: ignore[no-untyped-def]
    """Request columns of a row of a matrix before they are needed, in a kernel.

    Where rows lie far apart, the processor does not find out by itself which is the next, and one
    core waits for memory half of the time. The next row but one is the best to request: of the next
    one, the last part would still be on its way. A core waits for some twenty cache lines at once,
    so rows of several arrays are requested in parts, between those that are worked on.
    """
    for column in range(start, min(stop, array.shape[1]), _CACHE_LINE // array.itemsize):
        _prefetch(array, row, column)


# The system's pread(2) and pwrite(2), in a kernel: a descriptor, an address, how many bytes, and
# where they are in the file. They return how many bytes they have read or written, or -1.
_call = types.int64(types.int32, types.uintp, types.uintp, types.int64)
read_at = types.ExternalFunction("pread", _call)
write_at = types.ExternalFunction("pwrite", _call)

# Four vectors of 16 numbers, which hide the time that an instruction takes.
LANES = 64


def as_float32(number: Any) -> Any:
    """Return a float32 number, or a uint16 one that holds bfloat16, as float32, in a kernel."""
    raise NotImplementedError("compiled only")


@overload(as_float32, inline="always")
def _as_float32(number):  # type: ignore[no-untyped-def]
    if number == types.uint16:
        return lambda number: np.uint32(np.uint32(number) << np.uint32(16)).view(np.float32)
    return lambda number: number


@extending.intrinsic
def _lanes_on_stack(context: Any) -> Any:
    """A pointer to ``LANES`` float32 numbers, in a kernel: a new array takes longer than a row."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = cgutils.alloca_once(builder, ir.ArrayType(ir.FloatType(), LANES))
        return builder.bitcast(place, target.get_value_type(signature.return_type))

    return types.voidptr(), generate


@inlined
def new_lanes():  # type: ignore[no-untyped-def]
    """Return ``LANES`` float32 numbers, in a kernel, where LLVM knows that no other array has them.

    So it keeps them in registers while it writes to others.
    """
    return numba.carray(_lanes_on_stack(), (LANES,), np.float32)


@inlined
def product_of(first, second):  # type: ignore[no-untyped-def]
    """Return the inner product of two vectors of one length, in a kernel: float32."""
    lanes = new_lanes()
    lanes[:] = np.float32(0.0)
    whole = first.size // LANES * LANES
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += as_float32(first[start + lane]) * as_float32(second[start + lane])
    total = sum_of(lanes)
    for place in range(whole, first.size):
        total += as_float32(first[place]) * as_float32(second[place])
    return total


@inlined
def sum_of(lanes):  # type: ignore[no-untyped-def]
    """Return the sum of float32 [LANES], in a kernel; changes them."""
    for width in (32, 16, 8, 4, 2, 1):
        for lane in range(width):
            lanes[lane] += lanes[lane + width]
    return lanes[0]
