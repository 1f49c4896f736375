"""Memory by its address, rows before they are needed, files by the system's calls, in kernels."""

from __future__ import annotations

from typing import Any

from runtime.kernels.compiled import carray, cgutils, exactly_inlined, extending, inlined, ir, types


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
    return carray(_pointer(address), (size,), dtype)


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


# The entries of a row that are requested together.
PART = 128


@inlined
def prefetch_part(array, row, start):  # type: ignore[no-untyped-def]
    """Request ``PART`` entries of a row of a matrix before they are needed, in a kernel.

    Where rows lie far apart, the processor does not find out by itself which is the next, and one
    core waits for memory half of the time. It can wait for some twenty cache lines at once, so a
    row is requested in parts, between those of another row: a whole row at once takes a third
    longer. The next row but one is the best to request: of the next one, the last part would still
    be on its way.
    """
    stop = min(start + PART, array.shape[1])
    for column in range(start, stop, _CACHE_LINE // array.itemsize):
        _prefetch(array, row, column)


# The system's pread(2) and pwrite(2), in a kernel: a descriptor, an address, how many bytes, and
# where they are in the file. They return how many bytes they have read or written, or -1.
_call = types.int64(types.int32, types.uintp, types.uintp, types.int64)
read_at = types.ExternalFunction("pread", _call)
write_at = types.ExternalFunction("pwrite", _call)
