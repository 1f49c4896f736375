"""From MXNet's graph to a file of ONNX: opset 13, in the IR version that belongs to it.

Older programs read that as well as new ones: TensorRT 8, OpenCV, ncnn's and OpenVINO's converters.
The graph comes as the JSON that MXNet writes, with the values of its parameters and the shapes of
its tensors; MXNet itself is not needed.

In float16, parameters and maps are, while input and output are float32, and so is what loses too
much or overflows: what is done to the pixels, sums of squares and what follows from them (the
output GNAP), and a BatchNorm that gives the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Optional

from numpy.typing import NDArray

from evaluation.export.attributes import Attributes, UnknownOperatorError
from evaluation.export.layers import LAYERS
from evaluation.export.pixels import read_scaling, write_scaling
from evaluation.export.tensors import SPLITS, TENSORS
from evaluation.export.writer import HALF, SINGLE, Operator, Shape, Tensor, Writer
from runtime.errors import DataError
from runtime.untrusted.onnx_model import import_onnx

OPSET, IR_VERSION = 13, 7
INPUT = "data"
# The name by which InsightFace's torch2onnx.py makes a batch of any size.
_ANY_BATCH = "None"
# They give what they get, a Dropout in inference. What is float16 is decided here, not by a Cast.
_SAME = frozenset("BlockGrad Cast Dropout _copy".split())
# Sums over many elements, and powers.
_WIDE = frozenset(
    """
    InstanceNorm L2Normalization LayerNorm exp log max mean min rsqrt sqrt square sum _power
    _power_scalar broadcast_power
    """.split()
)
_PRODUCTS = frozenset(("broadcast_mul", "elemwise_mul"))
TRANSLATED = frozenset((*LAYERS, *TENSORS, *SPLITS, *_SAME, "null"))
"""The operators that are translated."""


@dataclass(frozen=True)
class Network:
    """What is exported.

    Attributes:
        graph: ``nodes`` and ``heads``, as MXNet writes them, with the input ``data``, one output.
        attributes: those of each node, by its number.
        parameters: the values of all variables but ``data``, by name.
        shapes: of each variable, and of each operator's first output, by name; -1 for a size that
            grows with the batch.
    """

    graph: Mapping[str, Any]
    attributes: Sequence[Mapping[str, str]]
    parameters: Mapping[str, NDArray[Any]]
    shapes: Mapping[str, Shape]


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


def to_onnx(network: Network, form: Form, output: str, description: str) -> Any:
    """Return an ``onnx.ModelProto``, which ONNX's own checker has accepted.

    Args:
        network: what is exported.
        form: how.
        output: the name of the result.
        description: what the file says of itself.

    Raises:
        DataError: an operator has no translation, or a parameter is beyond float16.
    """
    translation = _Translation(network, form)
    return _packed(translation.run(output), network, form, output, description)


class _Translation:
    """Goes through the nodes once, in their order."""

    def __init__(self, network: Network, form: Form) -> None:
        self._network, self._form = network, form
        self._nodes = network.graph["nodes"]
        self._writer = Writer()
        self._writer.reserve([node["name"] for node in self._nodes])
        # By number of node: the values of its outputs.
        self._values: dict[int, list[str]] = {}
        self._last = network.graph["heads"][0][0]
        self._scaled = ""

    def run(self, output: str) -> Writer:
        data = next(n for n, node in enumerate(self._nodes) if node["name"] == INPUT)
        scaling = read_scaling(self._nodes, data, self._network.attributes)
        first = self._pixels()
        self._scaled = write_scaling(self._writer, first, scaling)
        self._values[scaling.last] = [self._scaled]
        for index, node in enumerate(self._nodes):
            # What lies before the scaled pixels is part of the scaling.
            if node["op"] != "null" and index > scaling.last:
                self._values[index] = self._translate(index, node)
        (result, *_) = self._values[self._last]
        # The name of a parameter may be that of the output of no node.
        self._writer.rename(self._writer.cast(result, SINGLE), output)
        return self._writer

    def _pixels(self) -> str:
        if not self._form.takes_bytes:
            self._writer.dtypes[INPUT] = SINGLE
            return INPUT
        return self._writer.add("Cast", self._writer.unique("pixels"), [INPUT], SINGLE, to=1)

    def _translate(self, index: int, node: Mapping[str, Any]) -> list[str]:
        inputs = [self._tensor(entry) for entry in node["inputs"]]
        kind, attributes = node["op"], Attributes(self._network.attributes[index])
        if kind in _SAME:
            if kind == "Dropout" and attributes.text("mode", "training") == "always":
                self._refuse(node, "drops elements in inference, too")
            return [inputs[0].name]
        shape = self._network.shapes[node["name"]]
        dtype = self._dtype(index, node, inputs)
        op = Operator((node["name"], kind, attributes), inputs, shape, dtype, self._writer)
        try:
            values = self._apply(kind, op)
            attributes.check_all_taken()
        except UnknownOperatorError as problem:
            self._refuse(node, str(problem))
        except (KeyError, ValueError, SyntaxError, TypeError, IndexError):
            self._refuse(node, f"has attributes that do not fit: {self._network.attributes[index]}")
        return values

    def _apply(self, kind: str, op: Operator) -> list[str]:
        if kind in SPLITS:
            return SPLITS[kind](op)
        translate = LAYERS.get(kind) or TENSORS.get(kind)
        if translate is None:
            raise UnknownOperatorError("has no translation")
        return [translate(op)]

    def _tensor(self, entry: Sequence[int]) -> Tensor:
        index, output = entry[:2]
        node = self._nodes[index]
        shape = self._network.shapes[node["name"]]
        if index in self._values:
            return Tensor(self._values[index][output], shape)
        return Tensor(node["name"], shape, self._network.parameters[node["name"]])

    def _dtype(self, index: int, node: Mapping[str, Any], inputs: Sequence[Tensor]) -> str:
        """Return the number format in which a node computes."""
        if self._form.dtype == SINGLE:
            return SINGLE
        kind, computed = node["op"], [one.name for one in inputs if one.array is None]
        is_square = kind in _PRODUCTS and len(set(computed)) < len(computed)
        is_embedding = kind == "BatchNorm" and index == self._last
        formats = self._writer.dtypes
        follows_wide = any(formats[one] == SINGLE and one != self._scaled for one in computed)
        return SINGLE if kind in _WIDE or is_square or is_embedding or follows_wide else HALF

    def _refuse(self, node: Mapping[str, Any], problem: str) -> NoReturn:
        raise DataError(
            f"node {node['name']!r} ({node['op']}) {problem}; evaluation/export/layers.py and "
            "tensors.py have the translations to ONNX"
        )


def _packed(writer: Writer, network: Network, form: Form, output: str, description: str) -> Any:
    """Return the nodes and constants that are written as a checked model."""
    onnx = import_onnx()
    types, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper
    batch = form.batch_size or _ANY_BATCH
    shapes = network.shapes
    result = network.graph["nodes"][network.graph["heads"][0][0]]["name"]
    pixels = types.UINT8 if form.takes_bytes else types.FLOAT
    used = {name for node in writer.nodes for name in node.inputs}
    graph = helper.make_graph(
        [
            helper.make_node(one.operator, one.inputs, one.outputs, one.name, **one.attributes)
            for one in writer.nodes
        ],
        "network",
        [helper.make_tensor_value_info(INPUT, pixels, [batch, *shapes[INPUT][1:]])],
        [helper.make_tensor_value_info(output, types.FLOAT, [batch, *shapes[result][1:]])],
        [
            numpy_helper.from_array(array, name)
            for name, array in writer.constants.items()
            if name in used
        ],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="face-training-toolkit",
        doc_string=description,
    )
    onnx.checker.check_model(model)
    return model
