"""The nodes and constants of an ONNX graph that is being written.

MXNet's own exporter is not used: it writes PReLU's slope as [C], which ONNX broadcasts over the
last axis instead of the channels, and copies the gammas that a BatchNorm with ``fix_gamma`` does
not use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from runtime.untrusted.onnx_model import import_onnx

Shape = tuple[int, ...]
"""Of a tensor; -1 stands for a size that grows with the batch."""

SINGLE, HALF = "float32", "float16"
# They say how to compute, not what; or what the inputs say as well.
_WITHOUT_EFFECT = frozenset(
    "no_bias num_args num_filter num_hidden cudnn_off cudnn_tune workspace momentum "
    "use_global_stats use_length".split()
)
_PYTHON_2_INTEGER = re.compile(r"(\d)L\b")


class UnknownOperatorError(Exception):
    """ONNX gets no node for an operator, or for one of its attributes; the message names it."""


class Tensor(NamedTuple):
    """What a node reads: a value of the graph, or a parameter."""

    name: str
    shape: Shape
    array: Optional[NDArray[Any]] = None
    """Of a parameter."""


class Writer:
    """Collects nodes, constants, and the number format of every value."""

    def __init__(self, names: Iterable[str]) -> None:
        """Args: ``names`` that nodes and parameters have already."""
        self.nodes: list[Any] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self.dtypes: dict[str, str] = {}
        """The number format of each value that a node or the input of the graph gives."""
        self._casts: dict[tuple[str, str], str] = {}
        self._taken = set(names)

    def unique(self, name: str) -> str:
        """Return a name that nothing in the graph has, like ``name``."""
        found, number = name, 1
        while found in self._taken:
            found, number = f"{name}_{number}", number + 1
        self._taken.add(found)
        return found

    def add(
        self,
        operator: str,
        name: str,
        inputs: Sequence[str],
        dtype: str,
        outputs: Sequence[str] = (),
        **attributes: Any,
    ) -> str:
        """Append a node, by default with one output of its name; return the first output."""
        outputs = outputs or [name]
        make_node = import_onnx().helper.make_node
        self.nodes.append(make_node(operator, inputs, outputs, name, **attributes))
        self.dtypes.update(dict.fromkeys(outputs, dtype))
        return outputs[0]

    def constant(self, name: str, array: NDArray[Any], dtype: Optional[str] = None) -> str:
        """Return the name of a constant with these values, in another number format if given.

        Raises:
            UnknownOperatorError: a finite value has no finite one in float16.
        """
        # One parameter may be needed in both formats.
        shown, name = name, f"{name}_{HALF}" if dtype == HALF else name
        if name in self.constants:
            return name
        with np.errstate(over="ignore"):
            converted = np.array(array, dtype, order="C")
        if dtype == HALF and not np.array_equal(np.isfinite(array), np.isfinite(converted)):
            raise UnknownOperatorError(
                f"has values in {shown!r} up to {np.abs(array).max():g}, beyond float16; "
                "export in float32"
            )
        self.constants[name] = converted
        return name

    def cast(self, value: str, dtype: str) -> str:
        """Return a value in another number format."""
        if self.dtypes[value] == dtype:
            return value
        key = (value, dtype)
        if key not in self._casts:
            name = self.unique(f"{value}_{dtype}")
            # The numbers of TensorProto's types.
            number = {SINGLE: 1, HALF: 10}[dtype]
            self._casts[key] = self.add("Cast", name, [value], dtype, to=number)
        return self._casts[key]

    def rename(self, value: str, name: str) -> None:
        """Give a value another name."""
        for node in self.nodes:
            for names in (node.input, node.output):
                names[:] = [name if one == value else one for one in names]
        self.dtypes[name] = self.dtypes.pop(value)


class Operator:
    """An operator of MXNet that is being translated.

    Its attributes are taken once each, so that none is left out by mistake: an attribute that a
    translation does not know may change what the operator computes.

    Attributes:
        name: of its node.
        inputs: what it reads.
        shape: of its first output; all have the same.
        dtype: the number format in which it computes.
    """

    def __init__(
        self,
        name: str,
        attributes: Mapping[str, str],
        inputs: Sequence[Tensor],
        shape: Shape,
        dtype: str,
        writer: Writer,
    ) -> None:
        self.name, self.inputs, self.shape, self.dtype = name, inputs, shape, dtype
        self._left = {key: text for key, text in attributes.items() if key not in _WITHOUT_EFFECT}
        self._writer = writer

    def text(self, key: str, default: str) -> str:
        """Take an attribute that is a word."""
        return self._left.pop(key, default)

    def number(self, key: str, default: float) -> float:
        """Take an attribute that is a number."""
        return float(self._left.pop(key, default))

    def integer(self, key: str, default: int) -> int:
        """Take an attribute that is a whole number."""
        return int(self.taken(key, default))

    def flag(self, key: str, default: bool) -> bool:
        """Take a truth value, which older versions write as a digit."""
        return self._left.pop(key, str(default)).lower() in ("true", "1")

    def numbers(self, key: str) -> tuple[Any, ...]:
        """Take several numbers, of which some may be None; one without parentheses is one."""
        value = self.taken(key, ())
        return tuple(value) if isinstance(value, (tuple, list)) else (value,)

    def taken(self, key: str, default: Any = None) -> Any:
        """Take an attribute of any type, which is written as Python writes it."""
        text = self._left.pop(key, None)
        if text is None:
            return default
        return ast.literal_eval(_PYTHON_2_INTEGER.sub(r"\1", text))

    def expect(self, key: str, *values: str) -> None:
        """Take an attribute that may only have these values, if it is there."""
        if self._left.get(key) in values:
            del self._left[key]

    def check_all_taken(self) -> None:
        """Raise ``UnknownOperatorError`` for attributes that nothing has taken."""
        if self._left:
            listed = ", ".join(f"{key} = {text:.40}" for key, text in sorted(self._left.items()))
            raise UnknownOperatorError(f"has {listed}, for which there is no translation")

    def value(self, index: int = 0) -> str:
        """Return an input as a value in the number format of this operator."""
        found = self.inputs[index]
        if found.array is None:
            return self._writer.cast(found.name, self.dtype)
        return self._writer.constant(found.name, found.array, self.dtype)

    def values(self) -> list[str]:
        """Return all inputs."""
        return [self.value(index) for index in range(len(self.inputs))]

    def array(self, index: int) -> NDArray[Any]:
        """Return a parameter, which has to be one.

        Raises:
            UnknownOperatorError: it is computed.
        """
        found = self.inputs[index].array
        if found is None:
            raise UnknownOperatorError(f"computes its input {index}, which has to be a parameter")
        return found

    def constant(self, part: str, values: Any) -> str:
        """Return a constant of this operator, in its number format."""
        array = np.asarray(values, np.float64)
        return self._writer.constant(self._writer.unique(f"{self.name}_{part}"), array, self.dtype)

    def integers(self, part: str, values: Sequence[int]) -> str:
        """Return a constant of whole numbers: shapes, axes, indices."""
        array = np.array(values, np.int64)
        return self._writer.constant(self._writer.unique(f"{self.name}_{part}"), array)

    def emit(self, operator: str, *inputs: str, part: str = "", **attributes: Any) -> str:
        """Append a node with one output; ``part`` names one that is not the operator's last."""
        name = self._writer.unique(f"{self.name}_{part}") if part else self.name
        return self._writer.add(operator, name, inputs, self.dtype, **attributes)

    def emit_several(self, operator: str, *inputs: str, count: int, **attributes: Any) -> list[str]:
        """Append a node with several outputs."""
        names = [self._writer.unique(f"{self.name}_output{index}") for index in range(count)]
        self._writer.add(operator, self.name, inputs, self.dtype, names, **attributes)
        return names
