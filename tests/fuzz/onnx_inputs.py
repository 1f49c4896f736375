"""ONNX files that are almost right, or have what a file of others must not have."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from runtime.untrusted.onnx_model import import_onnx

_HUGE = [0, -1, 1, 1 << 20, 1 << 31, (1 << 31) - 1, 1 << 40, (1 << 62) + 1, -(1 << 63)]
_PLACES = ["secret", "/etc/passwd", "../secret", "", "a/../../secret", "*/_ORT_MEM_ADDR_/*"]
_ENDS = ["Flatten"] * 6 + ["scalar", "mean of a batch", "Reshape", "Cast", "SequenceConstruct"]
_ENDS += ["Optional", "maps"]


def make_onnx(rng: random.Random) -> bytes:
    """Return a file, mostly with one thing that is wrong."""
    made = _Model(rng)
    for _ in range(rng.randrange(1, 6)):
        made.layer()
    model = made.model()
    if rng.random() < 0.6:
        rng.choice(_SPOILS)(_Spoiler(model, rng))
    content: bytes = model.SerializeToString()
    return content


class _Model:
    """A chain of operators on images [b, 3, 32, 32], to be spoiled."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._onnx = import_onnx()
        self._nodes: list[Any] = []
        self._tensors: list[Any] = []
        self._last, self._channels = "x", 3

    def _tensor(self, content: Any) -> str:
        """Add an initializer; returns its name."""
        name = f"w{len(self._tensors)}"
        self._tensors.append(self._onnx.numpy_helper.from_array(content, name))
        return name

    def _ones(self, *shape: int) -> str:
        return self._tensor(np.ones(shape, np.float32))

    def _node(self, op: str, *inputs: str, **attributes: Any) -> None:
        """Append an operator to the chain."""
        given = [self._last, *inputs]
        self._last = f"y{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(op, given, [self._last], **attributes))

    def layer(self) -> None:
        """Append a layer with usual attributes, or huge ones."""
        rng, channels = self._rng, self._channels
        number = rng.choice([1, 1, 1, 2, 3, *_HUGE]) if rng.random() < 0.15 else 1
        op = rng.choice("Conv MaxPool Relu BatchNormalization PRelu Transpose Concat shape".split())
        if op == "Conv":
            weight = self._ones(4, channels, 3, 3)
            self._node(op, weight, pads=[1, 1, 1, number], strides=[1, number], group=1)
            self._channels = 4
        elif op == "MaxPool":
            self._node(op, kernel_shape=[2, max(1, number)], pads=[0, 0, 1, 1])
        elif op == "Relu":
            self._node(op)
        elif op == "BatchNormalization":
            self._node(op, *[self._ones(channels) for _ in range(4)])
        elif op == "PRelu":
            self._node(op, self._ones(channels, 1, 1))
        elif op == "Transpose":
            self._node(op, perm=rng.choice([[0, 1, 3, 2], [0, 1, 2, number]]))
        elif op == "Concat":
            self._node(op, self._last, axis=rng.choice([1, 2, number]))
            self._channels *= 2
        else:
            self._reshape(number)

    def _reshape(self, number: int) -> None:
        """Append an operator whose second input says a shape."""
        rng = self._rng
        op = rng.choice(["Reshape", "Expand", "Tile", "Pad", "Resize", "ConstantOfShape"])
        sides = [rng.choice([1, number, *_HUGE]) for _ in range(8 if op == "Pad" else 4)]
        if rng.random() < 0.7:
            sides = {"Reshape": [0, 0, -1, 1], "Pad": [0] * 8}.get(op, [1, 1, 1, 1])
        name = self._tensor(np.array(sides, np.int64))
        if op == "ConstantOfShape":
            self._nodes.append(self._onnx.helper.make_node(op, [name], [f"c{name}"]))
            self._node("Add", f"c{name}")
        elif op == "Resize":
            self._node(op, "", "", name, mode="nearest")
        else:
            self._node(op, name)

    def model(self) -> Any:
        """Return the message."""
        self._node("GlobalAveragePool")
        helper, kind = self._onnx.helper, self._onnx.TensorProto.FLOAT
        given = helper.make_tensor_value_info("x", kind, ["b", 3, 32, 32])
        made = self._end()
        graph = helper.make_graph(self._nodes, "g", [given], [made], self._tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)

    def _end(self) -> Any:
        """Append a Flatten, or what gives no row per image; returns the output."""
        helper, types = self._onnx.helper, self._onnx.TensorProto
        end = self._rng.choice(_ENDS)
        if end == "scalar":
            self._node("ReduceMean", keepdims=0)
        elif end == "mean of a batch":
            self._node("ReduceMean", axes=[0], keepdims=self._rng.randrange(2))
        elif end == "Reshape":
            shape = self._rng.choice([[1, -1], [-1], [-1, 1]])
            self._node(end, self._tensor(np.array(shape, np.int64)))
        elif end == "Cast":
            self._node(end, to=types.STRING)
        elif end != "maps":
            self._node(end)
        if end == "SequenceConstruct":
            return helper.make_tensor_sequence_value_info(self._last, types.FLOAT, None)
        if end == "Optional":
            given = helper.make_tensor_type_proto(types.FLOAT, None)
            return helper.make_value_info(self._last, helper.make_optional_type_proto(given))
        kind = types.STRING if end == "Cast" else types.FLOAT
        return helper.make_tensor_value_info(self._last, kind, None)


class _Spoiler:
    """Makes one thing of a model wrong; each method is one way."""

    def __init__(self, model: Any, rng: random.Random) -> None:
        self._model, self._graph, self._rng = model, model.graph, rng

    def _tensor(self) -> Any:
        tensors = self._graph.initializer
        return self._rng.choice(tensors) if tensors else tensors.add()

    def external(self) -> None:
        tensor, rng = self._tensor(), self._rng
        for key, value in (("location", rng.choice(_PLACES)), ("offset", "0"), ("length", "4")):
            if rng.random() < 0.8:
                number = str(rng.choice(_HUGE)) if rng.random() < 0.5 else value
                tensor.external_data.add(key=key, value=value if key == "location" else number)
        if rng.random() < 0.8:
            tensor.data_location = 1
        if rng.random() < 0.7:
            tensor.ClearField("raw_data")

    def dims(self) -> None:
        self._tensor().dims[:] = self._rng.choices(_HUGE, k=self._rng.randrange(5))

    def type(self) -> None:
        tensor = self._tensor()
        tensor.data_type = self._rng.randrange(24)
        if self._rng.random() < 0.5:
            tensor.ClearField("raw_data")
            tensor.string_data.extend([b"a"] * self._rng.randrange(3))
            tensor.int32_data.extend([1] * self._rng.randrange(3))

    def control_flow(self) -> None:
        node = self._rng.choice(self._graph.node)
        node.op_type = self._rng.choice(("If", "Loop", "Scan", "SequenceMap", node.op_type))
        node.attribute.add(name="body", type=5).g.CopyFrom(self._graph)

    def domain(self) -> None:
        node = self._rng.choice(self._graph.node)
        domains = ("com.microsoft", "custom", "ai.onnx.ml", "ai.onnx", "\x1b[2J")
        node.domain = self._rng.choice(domains)
        self._model.opset_import.add(domain=node.domain, version=1)

    def function(self) -> None:
        function = self._model.functions.add(name="F", domain="d", input=["x"], output=["y"])
        op = self._rng.choice(("Relu", "F"))
        function.node.add(op_type=op, input=["x"], output=["y"], domain="d")
        node = self._rng.choice(self._graph.node)
        node.op_type, node.domain = "F", "d"

    def sparse(self) -> None:
        sparse = self._graph.sparse_initializer.add(dims=self._rng.choices(_HUGE, k=2))
        sparse.values.CopyFrom(self._tensor())

    def names(self) -> None:
        node, other = (self._rng.choice(self._graph.node) for _ in range(2))
        node.output[:] = other.output if self._rng.random() < 0.5 else ["x"]
        if self._rng.random() < 0.5:
            node.input[:] = node.output

    def shape(self) -> None:
        value = self._rng.choice([*self._graph.input, *self._graph.output])
        for dim in value.type.tensor_type.shape.dim:
            if self._rng.random() < 0.5:
                dim.dim_value = self._rng.choice(_HUGE)
        value.type.tensor_type.elem_type = self._rng.choice((1, 1, 2, 10, 16, 0))

    def operator(self) -> None:
        ops = "RandomNormal Range NonZero LSTM Einsum TfIdfVectorizer Gather".split()
        self._rng.choice(self._graph.node).op_type = self._rng.choice([*ops, ""])

    def version(self) -> None:
        self._model.ir_version = self._rng.choice(_HUGE)
        self._model.opset_import[0].version = self._rng.choice([*_HUGE, 1, 7, 13, 21])


_SPOILS = [change for name, change in vars(_Spoiler).items() if not name.startswith("_")]
