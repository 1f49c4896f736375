"""ONNX files that are almost right, or have what a file of others must not have."""

from __future__ import annotations

import random
from typing import Any, Callable

import numpy as np

from runtime.untrusted.onnx_model import import_onnx

_HUGE = [0, -1, 1, 1 << 20, 1 << 31, (1 << 31) - 1, 1 << 40, (1 << 62) + 1, -(1 << 63)]
_PLACES = ["secret", "/etc/passwd", "../secret", "", "a/../../secret", "*/_ORT_MEM_ADDR_/*"]
_TYPES = range(24)


class _Model:
    """A chain of operators on images [b, 3, 32, 32], to be spoiled."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.onnx = import_onnx()
        self.helper = self.onnx.helper
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self.last, self.channels = "x", 3

    def tensor(self, shape: tuple[int, ...], dtype: str = "<f4") -> str:
        """Add an initializer; returns its name."""
        name = f"w{len(self.tensors)}"
        content = np.ones(shape, dtype)
        self.tensors.append(self.onnx.numpy_helper.from_array(content, name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> None:
        """Append an operator to the chain."""
        given = [self.last, *inputs]
        self.last = f"y{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(op, given, [self.last], **attributes))

    def layer(self) -> None:
        """Append a layer with usual attributes, or huge ones."""
        rng = self.rng
        number = rng.choice([1, 1, 1, 2, 3, *_HUGE]) if rng.random() < 0.15 else 1
        kind = rng.randrange(8)
        if kind == 0:
            weight = self.tensor((4, self.channels, 3, 3))
            self.node("Conv", weight, pads=[1, 1, 1, number], strides=[1, number], group=1)
            self.channels = 4
        elif kind == 1:
            self.node("MaxPool", kernel_shape=[2, max(1, number)], pads=[0, 0, 1, 1])
        elif kind == 2:
            self.node("Relu")
        elif kind == 3:
            names = [self.tensor((self.channels,)) for _ in range(4)]
            self.node("BatchNormalization", *names)
        elif kind == 4:
            self.node("PRelu", self.tensor((self.channels, 1, 1)))
        elif kind == 5:
            self.node("Transpose", perm=rng.choice([[0, 1, 3, 2], [0, 1, 2, number]]))
        elif kind == 6:
            self.node("Concat", self.last, axis=rng.choice([1, 2, number]))
            self.channels *= 2
        else:
            self._reshape(number)

    def _reshape(self, number: int) -> None:
        """Append an operator whose second input says a shape."""
        rng = self.rng
        op = rng.choice(["Reshape", "Expand", "Tile", "Pad", "Resize", "ConstantOfShape"])
        sides = [rng.choice([1, number, *_HUGE]) for _ in range(8 if op == "Pad" else 4)]
        if rng.random() < 0.7:
            sides = {"Reshape": [0, 0, -1, 1], "Pad": [0] * 8}.get(op, [1, 1, 1, 1])
        array = np.array(sides, np.int64)
        name = f"w{len(self.tensors)}"
        self.tensors.append(self.onnx.numpy_helper.from_array(array, name))
        if op == "ConstantOfShape":
            self.nodes.append(self.helper.make_node(op, [name], [f"c{name}"]))
            self.node("Add", f"c{name}")
        elif op == "Resize":
            self.node(op, "", "", name, mode="nearest")
        else:
            self.node(op, name)

    def model(self) -> Any:
        """Return the message."""
        self.node("GlobalAveragePool")
        helper, kind = self.helper, self.onnx.TensorProto.FLOAT
        given = helper.make_tensor_value_info("x", kind, ["b", 3, 32, 32])
        made = self._end()
        graph = helper.make_graph(self.nodes, "g", [given], [made], self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)

    def _end(self) -> Any:
        """Append a Flatten, or what gives no row per image; returns the output."""
        end = self.rng.choice(
            ["Flatten"] * 6
            + ["scalar", "mean of a batch", "Reshape", "string", "sequence", "optional", "maps"]
        )
        helper, types, kind = self.helper, self.onnx.TensorProto, self.onnx.TensorProto.FLOAT
        if end == "Flatten":
            self.node("Flatten")
        elif end == "scalar":
            self.node("ReduceMean", keepdims=0)
        elif end == "mean of a batch":
            self.node("ReduceMean", axes=[0], keepdims=self.rng.randrange(2))
        elif end == "Reshape":
            shape = np.array(self.rng.choice([[1, -1], [-1], [-1, 1]]), np.int64)
            self.tensors.append(self.onnx.numpy_helper.from_array(shape, "end"))
            self.node("Reshape", "end")
        elif end == "string":
            kind = types.STRING
            self.node("Cast", to=kind)
        elif end == "sequence":
            self.node("SequenceConstruct")
            return helper.make_tensor_sequence_value_info(self.last, kind, None)
        elif end == "optional":
            self.node("Optional")
            given = helper.make_tensor_type_proto(kind, None)
            return helper.make_value_info(self.last, helper.make_optional_type_proto(given))
        return helper.make_tensor_value_info(self.last, kind, None)


def make_onnx(rng: random.Random) -> bytes:
    """Return a file, mostly with one thing that is wrong."""
    made = _Model(rng)
    for _ in range(rng.randrange(1, 6)):
        made.layer()
    model = made.model()
    if rng.random() < 0.6:
        rng.choice(_SPOILS)(model, rng)
    content: bytes = model.SerializeToString()
    return content


def _tensor(model: Any, rng: random.Random) -> Any:
    tensors = model.graph.initializer
    return rng.choice(tensors) if tensors else tensors.add()


def _external(model: Any, rng: random.Random) -> None:
    tensor = _tensor(model, rng)
    for key, value in (("location", rng.choice(_PLACES)), ("offset", "0"), ("length", "4")):
        if rng.random() < 0.8:
            number = str(rng.choice(_HUGE)) if rng.random() < 0.5 else value
            tensor.external_data.add(key=key, value=value if key == "location" else number)
    if rng.random() < 0.8:
        tensor.data_location = 1
    if rng.random() < 0.7:
        tensor.ClearField("raw_data")


def _dims(model: Any, rng: random.Random) -> None:
    tensor = _tensor(model, rng)
    tensor.dims[:] = [rng.choice(_HUGE) for _ in range(rng.randrange(5))]


def _type(model: Any, rng: random.Random) -> None:
    tensor = _tensor(model, rng)
    tensor.data_type = rng.choice(_TYPES)
    if rng.random() < 0.5:
        tensor.ClearField("raw_data")
        tensor.string_data.extend([b"a"] * rng.randrange(3))
        tensor.int32_data.extend([1] * rng.randrange(3))


def _control_flow(model: Any, rng: random.Random) -> None:
    node = rng.choice(model.graph.node)
    node.op_type = rng.choice(("If", "Loop", "Scan", "SequenceMap", node.op_type))
    attribute = node.attribute.add(name="body", type=5)
    attribute.g.CopyFrom(model.graph)


def _domain(model: Any, rng: random.Random) -> None:
    node = rng.choice(model.graph.node)
    node.domain = rng.choice(("com.microsoft", "custom", "ai.onnx.ml", "ai.onnx", "\x1b[2J"))
    model.opset_import.add(domain=node.domain, version=1)


def _function(model: Any, rng: random.Random) -> None:
    function = model.functions.add(name="F", domain="d", input=["x"], output=["y"])
    function.node.add(op_type=rng.choice(("Relu", "F")), input=["x"], output=["y"], domain="d")
    node = rng.choice(model.graph.node)
    node.op_type, node.domain = "F", "d"


def _sparse(model: Any, rng: random.Random) -> None:
    sparse = model.graph.sparse_initializer.add(dims=[rng.choice(_HUGE), rng.choice(_HUGE)])
    sparse.values.CopyFrom(_tensor(model, rng))


def _names(model: Any, rng: random.Random) -> None:
    node, other = (rng.choice(model.graph.node) for _ in range(2))
    node.output[:] = other.output if rng.random() < 0.5 else ["x"]
    if rng.random() < 0.5:
        node.input[:] = node.output


def _shape(model: Any, rng: random.Random) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output])
    for dim in value.type.tensor_type.shape.dim:
        if rng.random() < 0.5:
            dim.dim_value = rng.choice(_HUGE)
    value.type.tensor_type.elem_type = rng.choice((1, 1, 2, 10, 16, 0))


def _operator(model: Any, rng: random.Random) -> None:
    rng.choice(model.graph.node).op_type = rng.choice(
        ("RandomNormal", "Range", "NonZero", "LSTM", "Einsum", "TfIdfVectorizer", "Gather", "")
    )


def _version(model: Any, rng: random.Random) -> None:
    model.ir_version = rng.choice(_HUGE)
    model.opset_import[0].version = rng.choice([*_HUGE, 1, 7, 13, 21])


_SPOILS: list[Callable[[Any, random.Random], None]] = [
    _external, _dims, _type, _control_flow, _domain, _function, _sparse, _names, _shape, _operator,
    _version,
]  # fmt: skip
