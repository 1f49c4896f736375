"""Decorators that compile kernels for the CPU with Numba.

Compiling takes seconds, so Numba caches compiled kernels, beside the source or in the user's home.
If it can write neither (a read-only checkout, a container without a home), it refuses to compile;
then the cache is a temporary folder that only this user can write, because what is read from there
is executed.

Numba takes a cached kernel for current as long as the kernel's own file is. But the functions that
it calls are compiled into it, and so are constants of its module: an update of the toolkit that
changes such a function alone would go on with the old one. So what a kernel is made of counts, too.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, Optional

from runtime import environment

# Numba reads its variables while it is imported, and no other module imports it.
environment.prepare()

import numba  # noqa: E402
import numpy as np  # noqa: E402
from llvmlite import ir as ir  # noqa: E402
from numba import extending as extending  # noqa: E402
from numba.core import cgutils, config  # noqa: E402

# The range of a kernel's loop that is divided among threads.
prange = numba.prange
types = numba.types
_overloaded: set[Any] = set()


def overload(function: Any, **options: Any) -> Any:
    """A decorator of what a kernel compiles for a function, which stands in the same file."""
    _overloaded.add(function)
    return extending.overload(function, **options)


def _compiler(**options: Any) -> Callable[[Any], Any]:
    """A decorator that compiles a function, and caches the result if any folder can be written."""

    def decorate(function: Any) -> Any:
        with suppress(RuntimeError):
            return _cached(function, options)
        with suppress(RuntimeError):
            folder = _private_folder()
            os.environ["NUMBA_CACHE_DIR"] = config.CACHE_DIR = str(folder or "")
            return _cached(function, options)
        return numba.njit(**options)(function)

    return decorate


def _cached(function: Any, options: dict[str, Any]) -> Any:
    kernel = numba.njit(cache=True, **options)(function)
    # Numba 0.60, which is pinned: it compares the stamp of the index file with this one.
    file = kernel._cache._cache_file
    file._source_stamp = (file._source_stamp, _digest(function))
    return kernel


def _digest(function: Any) -> str:
    """A hash of what is compiled into a function: those that it calls, and constants."""
    found, waiting, parts = {function}, [function], []
    while waiting:
        caller = waiting.pop()
        for name in sorted(caller.__code__.co_names):
            value = caller.__globals__.get(name)
            called = getattr(value, "py_func", value if _is_overloaded(value) else None)
            # Of an intrinsic, what makes its code.
            called = getattr(value, "_defn", called)
            if isinstance(value, _CONSTANTS):
                parts.append(f"{name}={value!r}")
            elif called is not None and called not in found:
                found.add(called)
                waiting.append(called)
    sources = {inspect.getsourcefile(called) for called in found - {function}}
    parts += [Path(source).read_text(encoding="utf-8") for source in sorted(filter(None, sources))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _is_overloaded(value: Any) -> bool:
    return isinstance(value, FunctionType) and value in _overloaded


_CONSTANTS = (bool, int, float, str, tuple, np.generic)


def _private_folder() -> Optional[Path]:
    """A folder that only this user can write, the same in each process; None if impossible."""
    try:
        folder = Path(tempfile.gettempdir()) / f"numba-of-user-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return folder if is_ours and not found.st_mode & 0o077 else None


# Products may be fused with sums. Infinities and NaN keep their meaning, so that a diverged run is
# detected. Nothing is reordered (see ``product_of``).
_FAST = {"contract", "nsz"}

_compiled_in_parallel = _compiler(parallel=True, fastmath=_FAST)


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

    MXNet's engine calls it, and the caller waits; arguments are positional.
    """
    kernel = _compiled_in_parallel(function)

    @functools.wraps(function)
    def call(*arrays: Any) -> Any:
        _launch()
        # Loaders of images use this module and do without MXNet.
        from runtime.ndarray import run_on_engine

        return run_on_engine(lambda: kernel(*arrays))

    return call


# A function of single numbers, compiled into the kernels that call it.
inlined = _compiler(fastmath=_FAST, inline="always")
# The same for numbers that are to be equal wherever they are computed: nothing is reordered.
exactly_inlined = _compiler(inline="always")
# A kernel of one thread that releases Python's lock while it runs.
unlocked_kernel = _compiler(nogil=True)


@extending.intrinsic
def _pointer(context: Any, address: Any) -> Any:
    """A pointer to float32 numbers at an address (``uintp``), in a kernel."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], target.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.uintp), generate


@extending.intrinsic
def _untyped_pointer(context: Any, address: Any) -> Any:
    """A pointer to an address (``uint64``), in a kernel."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], target.get_value_type(signature.return_type))

    return types.voidptr(types.uint64), generate


@_compiler(inline="always")
def array_at(address, size, dtype):  # type: ignore[no-untyped-def]
    """A view [size] of numbers of a type in memory, in a kernel: it can take many arrays at once.

    ``address`` is uint64; ``dtype`` one of NumPy's types, such as ``np.int32``.
    """
    return numba.carray(_untyped_pointer(address), (size,), dtype)


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


@inlined
def prefetch_row(array, row):  # type: ignore[no-untyped-def]
    """Request a row of a matrix before it is needed, in a kernel.

    Where rows lie far apart, the processor does not find out by itself which is the next, and one
    core waits for memory a third of the time.
    """
    for column in range(0, array.shape[1], _CACHE_LINE // array.itemsize):
        _prefetch(array, row, column)


@inlined
def floats_at(address, size):  # type: ignore[no-untyped-def]
    """A view [size] of float32 numbers in memory, in a kernel: it can take many arrays at once."""
    return numba.carray(_pointer(address), (size,))


# The system's pread(2) and pwrite(2), in a kernel: a descriptor, an address, how many bytes, and
# where they are in the file. They return how many bytes they have read or written, or -1.
_call = types.int64(types.int32, types.uintp, types.uintp, types.int64)
read_at = types.ExternalFunction("pread", _call)
write_at = types.ExternalFunction("pwrite", _call)


# Sums, in an order that is written down. A compiler can vectorize a plain sum only if it may
# reorder it, and then it orders it as it likes. Numba has a parallel kernel optimized once more
# before it is cached, so that the process that compiles it would get other bits than all later
# ones. So sums of lanes are added up side by side here, as vectors of the code that LLVM gets, and
# in the end the lanes, in pairs.
_WIDTH, _VECTORS = 16, 4
# Four vectors hide the time that an instruction takes.
LANES = _VECTORS * _WIDTH
_FLAGS = ("contract",)


@inlined
def product_of(first, second):  # type: ignore[no-untyped-def]
    """The inner product of two contiguous vectors of one length, in a kernel: float32.

    Either is float32, or uint16 that holds bfloat16.
    """
    total = _whole_product(first, second)
    for d in range(first.size // LANES * LANES, first.size):
        total += _number(first, d) * _number(second, d)
    return total


@extending.intrinsic
def sum_of(context: Any, lanes: Any) -> Any:
    """The sum of float32 [LANES], in a kernel."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = _View(target, builder, signature.args[0], arguments[0])
        zero = ir.Constant(ir.IntType(64), 0)
        return _sum(builder, [view.vector(zero, number) for number in range(_VECTORS)])

    return types.float32(lanes), generate


@extending.intrinsic
def _whole_product(context: Any, first: Any, second: Any) -> Any:
    """The inner product, as far as the vectors fill all lanes."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        views = [
            _View(target, builder, kind, value) for kind, value in zip(signature.args, arguments)
        ]
        zero = ir.Constant(_vector_of(ir.FloatType()), [0.0] * _WIDTH)
        sums = [cgutils.alloca_once(builder, zero.type) for _ in range(_VECTORS)]
        for one in sums:
            builder.store(zero, one)
        blocks = builder.udiv(views[0].size, ir.Constant(ir.IntType(64), LANES))
        with cgutils.for_range(builder, blocks) as block:
            for number, one in enumerate(sums):
                left, right = (view.vector(block.index, number) for view in views)
                product = builder.fmul(left, right, flags=_FLAGS)
                builder.store(builder.fadd(builder.load(one), product, flags=_FLAGS), one)
        return _sum(builder, [builder.load(one) for one in sums])

    return types.float32(first, second), generate


@extending.intrinsic
def _number(context: Any, array: Any, place: Any) -> Any:
    """An entry of a vector as float32."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = _View(target, builder, signature.args[0], arguments[0])
        return view.widened(builder.load(builder.gep(view.data, [arguments[1]])))

    return types.float32(array, types.intp), generate


class _View:
    """A contiguous array of a kernel, as vectors of float32."""

    def __init__(self, target: Any, builder: Any, kind: Any, value: Any) -> None:
        assert kind.layout == "C" and kind.ndim == 1, kind
        assert kind.dtype in (types.float32, types.uint16), kind
        array = target.make_array(kind)(target, builder, value)
        self._builder, self.data = builder, array.data
        self.size = builder.extract_value(array.shape, 0)
        self._bytes = kind.dtype.bitwidth // 8

    def vector(self, block: Any, number: int) -> Any:
        """The vector of this number in a block of ``LANES`` entries."""
        builder = self._builder
        start = builder.mul(block, ir.Constant(block.type, LANES))
        start = builder.add(start, ir.Constant(block.type, _WIDTH * number))
        pointer = builder.gep(self.data, [start])
        kind = _vector_of(pointer.type.pointee)
        return self.widened(
            builder.load(builder.bitcast(pointer, kind.as_pointer()), align=self._bytes)
        )

    def widened(self, value: Any) -> Any:
        """Numbers of the array as float32."""
        if self._bytes == 4:
            return value
        is_vector = isinstance(value.type, ir.VectorType)
        form = _vector_of if is_vector else (lambda kind: kind)
        wide = form(ir.IntType(32))
        sixteen = ir.Constant(wide, [16] * _WIDTH if is_vector else 16)
        bits = self._builder.shl(self._builder.zext(value, wide), sixteen)
        return self._builder.bitcast(bits, form(ir.FloatType()))


def _vector_of(kind: Any) -> Any:
    return ir.VectorType(kind, _WIDTH)


def _sum(builder: Any, vectors: Sequence[Any]) -> Any:
    """The sum of all entries: of pairs of vectors, then of both halves of what is left."""
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2])
        vectors = [builder.fadd(left, right, flags=_FLAGS) for left, right in pairs]
    (total,) = vectors
    width = _WIDTH
    while width > 1:
        width //= 2
        nothing = ir.Constant(total.type, ir.Undefined)
        halves = (
            builder.shuffle_vector(total, nothing, _indices(start, width)) for start in (0, width)
        )
        total = builder.fadd(*halves, flags=_FLAGS)
    return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))


def _indices(start: int, width: int) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), width), [*range(start, start + width)])
