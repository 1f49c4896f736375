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
        views = [_View(target, builder, kind, value) for kind, value in pairs]
        return _reduced(builder, views, 0.0, _with_product, _added)

    return types.float32(first, second), generate


@extending.intrinsic
def sum_of(context: Any, lanes: Any) -> Any:
    """The sum of float32 [LANES], in a kernel."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = _View(target, builder, signature.args[0], arguments[0])
        vectors = [view.vector(_constant(start)) for start in range(0, LANES, _WIDTH)]
        return _folded(builder, vectors, _added)

    return types.float32(lanes), generate


@extending.intrinsic
def largest_of(context: Any, numbers: Any, least: Any) -> Any:
    """The largest of the numbers of a contiguous vector and ``least``, in a kernel: float32.

    The vector is float32, or uint16 that holds bfloat16. What is not a number is passed over.
    """

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = _View(target, builder, signature.args[0], arguments[0])
        found = _reduced(builder, [view], float("-inf"), _larger, _larger)
        return _larger(builder, found, arguments[1])

    return types.float32(numbers, types.float32), generate


def _reduced(
    builder: Any,
    views: Sequence[_View],
    first: float,
    step: Callable[..., Any],
    joined: Callable[..., Any],
) -> Any:
    """Reduce the numbers of vectors of one length to one; each lane starts with ``first``.

    ``step`` joins what has been found with one number of each vector, or with a vector of them,
    and ``joined`` what two lanes have found.
    """
    size, lanes = views[0].size, _constant(LANES)
    blocks = builder.udiv(size, lanes)
    start = ir.Constant(ir.VectorType(ir.FloatType(), _WIDTH), [first] * _WIDTH)
    found = [_variable(builder, start) for _ in range(_VECTORS)]
    with cgutils.for_range(builder, blocks) as block:
        begin = builder.mul(block.index, lanes)
        for number, one in enumerate(found):
            place = builder.add(begin, _constant(number * _WIDTH))
            given = [view.vector(place) for view in views]
            builder.store(step(builder, builder.load(one), *given), one)
    total = _variable(builder, _folded(builder, [builder.load(one) for one in found], joined))
    rest = builder.mul(blocks, lanes)
    with cgutils.for_range_slice(builder, rest, size, _constant(1)) as (place, _):
        given = [view.number(place) for view in views]
        builder.store(step(builder, builder.load(total), *given), total)
    return builder.load(total)


class _View:
    """A contiguous array of a kernel, whose numbers are loaded as float32."""

    def __init__(self, target: Any, builder: Any, kind: Any, value: Any) -> None:
        assert kind.layout == "C" and kind.ndim == 1, kind
        assert kind.dtype in (types.float32, types.uint16), kind
        array = target.make_array(kind)(target, builder, value)
        self._builder, self._data = builder, array.data
        self.size = builder.extract_value(array.shape, 0)

    def number(self, place: Any) -> Any:
        """One number."""
        return _widened(self._builder, self._builder.load(self._at(place)))

    def vector(self, place: Any) -> Any:
        """As many as a vector has, from one on."""
        pointer = self._at(place)
        number = pointer.type.pointee
        vectors = self._builder.bitcast(pointer, ir.VectorType(number, _WIDTH).as_pointer())
        # Aligned as a number is.
        aligned = 4 if number == ir.FloatType() else 2
        return _widened(self._builder, self._builder.load(vectors, align=aligned))

    def _at(self, place: Any) -> Any:
        return self._builder.gep(self._data, [place])


def _widened(builder: Any, value: Any) -> Any:
    """A number or a vector as float32."""
    is_vector = isinstance(value.type, ir.VectorType)
    if (value.type.element if is_vector else value.type) == ir.FloatType():
        return value
    bits, number = ir.IntType(32), ir.FloatType()
    if is_vector:
        bits, number = ir.VectorType(bits, _WIDTH), ir.VectorType(number, _WIDTH)
    half = ir.Constant(bits, [16] * _WIDTH if is_vector else 16)
    return builder.bitcast(builder.shl(builder.zext(value, bits), half), number)


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
