"""Memory by its address, files by the system's calls, in kernels."""

from __future__ import annotations

from typing import Any

from runtime.kernels.compiled import carray, exactly_inlined, extending, types


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


# The system's pread(2) and pwrite(2), in a kernel: a descriptor, an address, how many bytes, and
# where they are in the file. They return how many bytes they have read or written, or -1.
_call = types.int64(types.int32, types.uintp, types.uintp, types.int64)
read_at = types.ExternalFunction("pread", _call)
write_at = types.ExternalFunction("pwrite", _call)
