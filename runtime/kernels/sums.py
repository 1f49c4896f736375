"""Sums and maxima of vectors within kernels, in an order that is written down.

A compiler can vectorize a plain sum only if it may reorder it, and then it orders it as it likes.
Numba has a parallel kernel optimized once more before it is cached, so that the process that
compiles it would get other bits than all later ones. So the sums of ``LANES`` lanes are added up
side by side here, as vectors of the code that LLVM gets, in the end the lanes, in pairs, and then
what has filled no lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from runtime.kernels.compiled import cgutils, extending, ir, types

_WIDTH, _VECTORS = 16, 4
# Four vectors hide the time that an instruction takes.
LANES = _VECTORS * _WIDTH
# A processor may round a product and its sum once.
_FLAGS = ("contract",)
_INDEX = ir.IntType(64)


@extending.intrinsic
def product_of(context: Any, first: Any, second: Any) -> Any:
    """The inner product of two contiguous vectors of one length, in a kernel: float32.

    Either is float32, or uint16 that holds bfloat16.
    """

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pairs = zip(signature.args, arguments)
        arrays = [_contiguous(target, builder, *pair) for pair in pairs]
        return _reduced(builder, arrays, 0.0, _with_product, _added)

    return types.float32(first, second), generate


@extending.intrinsic
def sum_of(context: Any, lanes: Any) -> Any:
    """The sum of float32 [LANES], in a kernel."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, _ = _contiguous(target, builder, signature.args[0], arguments[0])
        starts = map(_constant, range(0, LANES, _WIDTH))
        vectors = [_loaded(builder, data, start, _WIDTH) for start in starts]
        return _folded(builder, vectors, _added)

    return types.float32(lanes), generate


@extending.intrinsic
def largest_of(context: Any, numbers: Any, least: Any) -> Any:
    """The largest of the numbers of a contiguous vector and ``least``, in a kernel: float32.

    The vector is float32, or uint16 that holds bfloat16. What is not a number is passed over.
    """

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = _contiguous(target, builder, signature.args[0], arguments[0])
        found = _reduced(builder, [array], float("-inf"), _larger, _larger)
        return _larger(builder, found, arguments[1])

    return types.float32(numbers, types.float32), generate


def _reduced(
    builder: Any,
    arrays: Sequence[tuple[Any, Any]],
    first: float,
    step: Callable[..., Any],
    joined: Callable[..., Any],
) -> Any:
    """Reduce the numbers of vectors of one length to one; each lane starts with ``first``.

    ``step`` joins what has been found with one number of each vector, or with a vector of them,
    and ``joined`` what two lanes have found.
    """
    (_, size), lanes = arrays[0], _constant(LANES)
    blocks = builder.udiv(size, lanes)
    start = ir.Constant(ir.VectorType(ir.FloatType(), _WIDTH), [first] * _WIDTH)
    found = [_variable(builder, start) for _ in range(_VECTORS)]
    with cgutils.for_range(builder, blocks) as block:
        begin = builder.mul(block.index, lanes)
        for number, one in enumerate(found):
            place = builder.add(begin, _constant(number * _WIDTH))
            given = [_loaded(builder, data, place, _WIDTH) for data, _ in arrays]
            builder.store(step(builder, builder.load(one), *given), one)
    total = _variable(builder, _folded(builder, [builder.load(one) for one in found], joined))
    rest = builder.mul(blocks, lanes)
    with cgutils.for_range_slice(builder, rest, size, _constant(1)) as (place, _):
        given = [_loaded(builder, data, place) for data, _ in arrays]
        builder.store(step(builder, builder.load(total), *given), total)
    return builder.load(total)


def _contiguous(target: Any, builder: Any, kind: Any, value: Any) -> tuple[Any, Any]:
    """Return where the numbers of an array of a kernel are, and how many."""
    assert kind.layout == "C" and kind.ndim == 1, kind
    assert kind.dtype in (types.float32, types.uint16), kind
    array = target.make_array(kind)(target, builder, value)
    return array.data, builder.extract_value(array.shape, 0)


def _loaded(builder: Any, data: Any, place: Any, width: int = 1) -> Any:
    """Load a number as float32, or from it on as many as a vector of this width has."""
    pointer = builder.gep(data, [place])
    number = pointer.type.pointee
    # Aligned as a number is.
    aligned = 4 if number == ir.FloatType() else 2
    pointer = builder.bitcast(pointer, _of_width(number, width).as_pointer())
    value = builder.load(pointer, align=aligned)
    if number == ir.FloatType():
        return value
    half = ir.Constant(_of_width(ir.IntType(32), width), [16] * width if width > 1 else 16)
    bits = builder.shl(builder.zext(value, half.type), half)
    return builder.bitcast(bits, _of_width(ir.FloatType(), width))


def _of_width(number: Any, width: int) -> Any:
    return ir.VectorType(number, width) if width > 1 else number


def _variable(builder: Any, value: Any) -> Any:
    """Memory of a kernel's own with a value; LLVM keeps it in a register."""
    place = cgutils.alloca_once(builder, value.type)
    builder.store(value, place)
    return place


def _with_product(builder: Any, total: Any, left: Any, right: Any) -> Any:
    return _added(builder, total, builder.fmul(left, right, flags=_FLAGS))


def _added(builder: Any, left: Any, right: Any) -> Any:
    return builder.fadd(left, right, flags=_FLAGS)


def _larger(builder: Any, found: Any, number: Any) -> Any:
    """Return the larger one; the first if the second is not a number."""
    return builder.select(builder.fcmp_ordered(">", number, found), number, found)


def _folded(builder: Any, vectors: Sequence[Any], joined: Callable[[Any, Any, Any], Any]) -> Any:
    """All entries joined: those of pairs of vectors, then of both halves of what is left."""
    while len(vectors) > 1:
        vectors = [joined(builder, *pair) for pair in zip(vectors[::2], vectors[1::2])]
    (total,) = vectors
    while total.type.count > 1:
        width = total.type.count // 2
        total = joined(builder, *(_part(builder, total, start, width) for start in (0, width)))
    return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))


def _constant(number: int) -> Any:
    return ir.Constant(_INDEX, number)


def _part(builder: Any, vector: Any, start: int, width: int) -> Any:
    places = ir.Constant(ir.VectorType(ir.IntType(32), width), [*range(start, start + width)])
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), places)
