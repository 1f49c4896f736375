"""From MXNet's graph to a file of ONNX: opset 13, in the IR version that belongs to it.

Older programs read that as well as new ones: TensorRT 8, OpenCV, ncnn's and OpenVINO's converters.
The graph comes as the JSON that MXNet writes, with the values of its parameters and the shapes of
its tensors; MXNet itself is not needed.

In float16, parameters and maps are, while input and output are float32, and so is what loses too
much or overflows: what is done to the pixels, sums of squares and what follows from them (the
output GNAP), and a BatchNorm that gives the embedding.

InsightFace's client decides by the first eight nodes how it scales the pixels: if the names of some
begin with "Sub" (or "_minus") and "Mul" ("_mul"), the graph gets them as they are, 0 to 255;
otherwise (x - 127.5) / 127.5. The graphs of this toolkit and InsightFace's for MXNet get them as
they are, however they go on: with (x - 127.5) / 128, with mean and deviation per channel, or with
a BatchNorm. So a graph that does not begin with these two nodes gets them, and those that undo
them. No two constants meet, so a program that folds constants leaves the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from evaluation.export.layers import LAYERS
from evaluation.export.tensors import TENSORS
from evaluation.export.writer import HALF, SINGLE, Operator, Tensor, UnknownOperatorError, Writer
from runtime.errors import DataError
from runtime.untrusted.onnx_model import import_onnx

if TYPE_CHECKING:
    from backbones.checkpoint import Checkpoint

OPSET, IR_VERSION = 13, 7
INPUT = "data"
"""Name of the input, in MXNet and in ONNX."""
# The names of its first nodes, by which InsightFace's client leaves the pixels as they are.
_CLIENTS = ("_minus", "_mul")
# Four operations that together return whole pixels exactly.
_NEUTRAL = (("Sub", 127.5), ("Mul", 2.0), ("Add", 255.0), ("Mul", 0.5))
DESCRIPTION = "Pixels 0 to 255, three channels as RGB; the network normalizes them itself."
# The name by which InsightFace's torch2onnx.py makes a batch of any size.
_ANY_BATCH = "None"
# Sums over many elements, and powers.
_WIDE = frozenset(
    """
    InstanceNorm L2Normalization LayerNorm exp log max mean min rsqrt sqrt square sum _power
    _power_scalar broadcast_power
    """.split()
)
_SCALING = frozenset("_image_normalize _plus_scalar _minus_scalar _mul_scalar _div_scalar".split())
_PRODUCTS = frozenset(("broadcast_mul", "elemwise_mul"))
_TRANSLATIONS = {**LAYERS, **TENSORS}
TRANSLATED = frozenset((*_TRANSLATIONS, "null"))
"""The operators that are translated."""


@dataclass(frozen=True)
class Form:
    """How it is exported.

    Attributes:
        dtype: float32, or float16.
        batch_size: of a graph for one size of batches; None for any.
        takes_bytes: whether the input is uint8, not float32.
    """

    dtype: str = SINGLE
    batch_size: Optional[int] = None
    takes_bytes: bool = False


class Translation:
    """Goes through the nodes of a network once, in their order."""

    def __init__(self, found: Checkpoint, form: Form) -> None:
        """Args: the network, from ``data`` to one output; how it is exported."""
        self._found, self._form = found, form
        graph = found.graph
        self._nodes, self._attributes = graph["nodes"], found.attributes()
        self._shapes = found.shapes()
        self._writer = Writer(node["name"] for node in self._nodes)
        # By number of node: the values of its outputs.
        self._values: dict[int, list[str]] = {}
        self._last = graph["heads"][0][0]
        # Pixels as they are, and scaled.
        self._pixels: set[str] = set()

    def model(self) -> Any:
        """Return an ``onnx.ModelProto``, which ONNX's own checker has accepted.

        Raises:
            DataError: an operator has no translation, or a parameter is beyond float16.
        """
        (first,) = (n for n, node in enumerate(self._nodes) if node["name"] == INPUT)
        self._values[first] = [self._input()]
        self._pixels.update(self._values[first])
        for index, node in enumerate(self._nodes):
            if node["op"] != "null":
                self._values[index] = self._translate(index, node)
        (result, *_) = self._values[self._last]
        self._writer.add("Cast", self._found.output, [result], SINGLE, to=1)
        onnx, writer = import_onnx(), self._writer
        types, helper = onnx.TensorProto, onnx.helper
        batch = self._form.batch_size or _ANY_BATCH
        pixels = types.UINT8 if self._form.takes_bytes else types.FLOAT
        sizes = self._shapes[self._nodes[self._last]["name"]][1:]
        graph = helper.make_graph(
            writer.nodes,
            "network",
            [helper.make_tensor_value_info(INPUT, pixels, [batch, *self._found.image_shape])],
            [helper.make_tensor_value_info(self._found.output, types.FLOAT, [batch, *sizes])],
            [onnx.numpy_helper.from_array(one, name) for name, one in writer.constants.items()],
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="face-training-toolkit",
            doc_string=DESCRIPTION,
        )
        onnx.checker.check_model(model)
        return model

    def _input(self) -> str:
        """Return the pixels, after nodes by which InsightFace's client leaves them alone."""
        writer, value = self._writer, INPUT
        writer.dtypes[INPUT] = SINGLE
        if self._form.takes_bytes:
            value = writer.add("Cast", writer.unique("pixels"), [INPUT], SINGLE, to=1)
        names = [node["name"] for node in self._nodes if node["op"] != "null"]
        if not all(map(str.startswith, names, _CLIENTS)):
            for operator, number in _NEUTRAL:
                name = writer.unique(f"{operator}_pixels")
                constant = writer.constant(f"{name}_constant", np.array(number), SINGLE)
                value = writer.add(operator, name, [value, constant], SINGLE)
        return value

    def _translate(self, index: int, node: Mapping[str, Any]) -> list[str]:
        inputs = [self._tensor(entry) for entry in node["inputs"]]
        kind, attributes = node["op"], self._attributes[index]
        shape, dtype = self._shapes[node["name"]], self._dtype(index, node, inputs)
        op = Operator(node["name"], attributes, inputs, shape, dtype, self._writer)
        try:
            if attributes.get("mode") == "always":
                raise UnknownOperatorError("drops elements in inference, too")
            if kind not in _TRANSLATIONS:
                raise UnknownOperatorError("has no translation")
            values = _TRANSLATIONS[kind](op)
        except UnknownOperatorError as problem:
            raise DataError(
                f"node {node['name']!r} ({kind}) {problem}; evaluation/export/layers.py and "
                "tensors.py have the translations to ONNX"
            ) from None
        return [values] if isinstance(values, str) else values

    def _tensor(self, entry: Sequence[int]) -> Tensor:
        index, output = entry[:2]
        node = self._nodes[index]
        shape = self._shapes[node["name"]]
        if index in self._values:
            return Tensor(self._values[index][output], shape)
        return Tensor(node["name"], shape, self._found.weights[node["name"]])

    def _dtype(self, index: int, node: Mapping[str, Any], inputs: Sequence[Tensor]) -> str:
        """Return the number format in which a node computes."""
        if self._form.dtype == SINGLE:
            return SINGLE
        kind, computed = node["op"], [one.name for one in inputs if one.array is None]
        if kind in _SCALING and self._pixels.issuperset(computed):
            self._pixels.add(node["name"])
            return SINGLE
        is_square = kind in _PRODUCTS and len(set(computed)) < len(computed)
        is_embedding = kind == "BatchNorm" and index == self._last
        formats = self._writer.dtypes
        follows_wide = any(formats[one] == SINGLE and one not in self._pixels for one in computed)
        return SINGLE if kind in _WIDE or is_square or is_embedding or follows_wide else HALF
