"""The nodes and constants of an ONNX graph that is being written.

MXNet's own exporter is not used: it writes PReLU's slope as [C], which ONNX broadcasts over the
last axis instead of the channels, and copies the gammas that a BatchNorm with ``fix_gamma`` does
not use.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from runtime.untrusted.onnx_model import import_onnx

Shape = tuple[int, ...]
"""Of a tensor; -1 stands for a size that grows with the batch."""

SINGLE, HALF = "float32", "float16"


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
        name = f"{name}_{HALF}" if dtype == HALF else name
        if name in self.constants:
            return name
        with np.errstate(over="ignore"):
            converted = np.array(array, dtype, order="C")
        if dtype == HALF and not np.array_equal(np.isfinite(array), np.isfinite(converted)):
            raise UnknownOperatorError(
                f"has values in {name!r} up to {np.abs(array).max():g}, beyond float16; "
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


@dataclass(frozen=True)
class Operator:
    """An operator of MXNet that is being translated.

    Attributes:
        name: of its node.
        attributes: checked and rewritten by ``backbones.graph.operators``; an attribute that a
            translation overlooks shows in the comparison with MXNet.
        inputs: what it reads.
        shape: of its first output; all have the same.
        dtype: the number format in which it computes.
        writer: gets the nodes.
    """

    name: str
    attributes: Mapping[str, str]
    inputs: Sequence[Tensor]
    shape: Shape
    dtype: str
    writer: Writer

    def get(self, key: str, default: Any = None) -> Any:
        """Return an attribute: a value that is written as Python writes it, or a word."""
        text = self.attributes.get(key)
        if text is None:
            return default
        try:
            return ast.literal_eval(text)
        except ValueError:
            return text

    def number(self, key: str, default: float) -> float:
        """Return an attribute that is a number."""
        return float(self.get(key, default))

    def numbers(self, key: str, default: Sequence[float] = ()) -> tuple[Any, ...]:
        """Return several numbers, of which some may be None; one without parentheses is one."""
        value = self.get(key, ())
        return (value if isinstance(value, tuple) else (value,)) or tuple(default)

    def value(self, index: int = 0) -> str:
        """Return an input as a value in the number format of this operator."""
        found = self.inputs[index]
        if found.array is None:
            return self.writer.cast(found.name, self.dtype)
        return self.writer.constant(found.name, found.array, self.dtype)

    def values(self) -> list[str]:
        """Return all inputs."""
        return [self.value(index) for index in range(len(self.inputs))]

    def array(self, index: int) -> NDArray[Any]:
        """Return the values of a parameter."""
        found = self.inputs[index].array
        assert found is not None, "no graph from a file computes the parameters of a layer"
        return found

    def constant(self, part: str, values: Any) -> str:
        """Return a constant: whole numbers, as shapes and axes are, or others in its format."""
        array, name = np.asarray(values), self.writer.unique(f"{self.name}_{part}")
        is_whole = array.dtype.kind == "i"
        return self.writer.constant(name, array, "int64" if is_whole else self.dtype)

    def emit(self, operator: str, *inputs: str, part: str = "", **attributes: Any) -> str:
        """Append a node with one output; ``part`` names one that is not the operator's last."""
        name = self.writer.unique(f"{self.name}_{part}") if part else self.name
        return self.writer.add(operator, name, inputs, self.dtype, **attributes)
