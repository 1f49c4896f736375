"""ONNX files of others: what no network for images needs is refused, by every command alike."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.network import open_network
from runtime.errors import ConfigError, DataError
from runtime.untrusted.onnx_model import import_onnx, import_onnxruntime, read_model

SIZE = (4, 4)


def model(*nodes: Any, tensors: Any = (), output: str = "y") -> Any:
    """A network from images ``x`` to ``y``, whose last node is a Flatten of ``output``."""
    onnx = import_onnx()
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    given = helper.make_tensor_value_info("x", kind, ["b", 3, 4, 4])
    made = helper.make_tensor_value_info("out", kind, ["b", None])
    nodes = (*nodes, helper.make_node("Flatten", [output], ["out"]))
    graph = helper.make_graph(list(nodes), "g", [given], [made], list(tensors))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)


def added(tensor: Any) -> Any:
    """x + a tensor [3, 4, 4]."""
    helper = import_onnx().helper
    return model(helper.make_node("Add", ["x", tensor.name], ["y"]), tensors=[tensor])


def tensor(*shape: int) -> Any:
    return import_onnx().numpy_helper.from_array(np.ones(shape or (3, 4, 4), np.float32), "w")


def outside(location: str) -> Any:
    found = tensor()
    found.ClearField("raw_data")
    found.data_location = 1
    for key, value in (("location", location), ("offset", "0"), ("length", "192")):
        found.external_data.add(key=key, value=value)
    return found


def written(folder: Path, content: Any) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(content.SerializeToString())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stranger's folder beside a secret, to which a link leads."""
    (tmp_path / "secret").write_bytes(np.full(48, 7.5, np.float32).tobytes())
    inner = tmp_path / "theirs"
    inner.mkdir()
    (inner / "link").symlink_to(tmp_path / "secret")
    os.link(tmp_path / "secret", inner / "hard")
    return inner


def test_weights_in_another_file_are_refused_by_every_command(folder: Path) -> None:
    helper = import_onnx().helper
    # ONNX Runtime takes the offset in the last place for an address.
    places = ("link", "hard", "theirs/../../secret", "../secret", "*/_ORT_MEM_ADDR_/*")
    models = [added(outside(place)) for place in (f"{folder.parent}/secret", *places)]
    constant = helper.make_node("Constant", [], ["c"], value=outside("../secret"))
    models.append(model(constant, helper.make_node("Add", ["x", "c"], ["y"])))
    for made in models:
        path = written(folder, made)
        command = Namespace(model=path, image_size=SIZE, dtype="float32")
        calls: Any = ((read_model, (path, SIZE)), (open_network, (command,)))
        for open_model, given in calls:
            with pytest.raises(DataError, match="the tensor 'w' is in another file") as caught:
                open_model(*given)
            assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def with_control_flow(op: str) -> Any:
    onnx = import_onnx()
    body = model(onnx.helper.make_node("Relu", ["x"], ["y"])).graph
    return model(onnx.helper.make_node(op, ["x"], ["y"], body=body))


def in_a_function(op: str) -> Any:
    helper = import_onnx().helper
    looped = helper.make_node(op, ["a"], ["b"], body=with_control_flow(op).graph)
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "F", ["a"], ["b"], [looped], opsets)
    made = model(helper.make_node("F", ["x"], ["y"], domain="own"))
    made.functions.append(function)
    made.opset_import.append(opsets[1])
    return made


def refused() -> Iterator[Any]:
    """Networks with what no network for images needs, and the words of the refusal."""
    helper = import_onnx().helper
    relu = helper.make_node("Relu", ["x"], ["y"])
    for op in ("If", "Loop", "Scan"):
        yield with_control_flow(op), f"the operator {op}|a graph in the attribute"
    yield in_a_function("Loop"), "only those of ONNX|a function"
    made = model(relu)
    made.functions.add(name="F", domain="own")
    yield made, "it has a function"
    yield model(helper.make_node("Relu", ["x"], ["y"], domain="com.microsoft")), "'com.microsoft'"
    made = model(relu)
    made.graph.sparse_initializer.add(dims=[1 << 40])
    yield made, "it has a sparse tensor"


def test_what_no_network_for_images_needs_is_refused(tmp_path: Path) -> None:
    for made, words in refused():
        with pytest.raises(DataError, match=words):
            read_model(written(tmp_path, made), SIZE)


@pytest.mark.parametrize("dims", [[1 << 40], [1 << 20, 1 << 20], [-4, 12], [49, 1 << 62, 4]])
def test_a_tensor_that_promises_more_than_the_file_has_is_refused(tmp_path, dims) -> None:
    promising = tensor()
    promising.dims[:] = dims
    with pytest.raises(DataError, match="the tensor 'w' has the shape"):
        read_model(written(tmp_path, added(promising)), SIZE)


def of_shape(sides: list[int]) -> Any:
    onnx = import_onnx()
    shape = onnx.numpy_helper.from_array(np.array(sides, np.int64), "s")
    nodes = [
        onnx.helper.make_node("ConstantOfShape", ["s"], ["c"]),
        onnx.helper.make_node("ReduceMax", ["c"], ["m"], keepdims=0),
        onnx.helper.make_node("Add", ["x", "m"], ["y"]),
    ]
    return model(*nodes, tensors=[shape])


def test_a_file_gets_the_memory_that_its_batch_needs(tmp_path: Path) -> None:
    path = written(tmp_path, of_shape([1 << 33]))
    assert path.stat().st_size < 300
    with pytest.raises(DataError, match="it needs more than 1024 MiB of memory"):
        read_model(path, SIZE)
    assert read_model(written(tmp_path, of_shape([1 << 10])), SIZE)
    # One gigabyte for an image is not enough for 32 of 24 MiB, with results as large.
    large = added(tensor(3, 1, 1))
    for place, side in enumerate((32, 3, 512, 4096)):
        large.graph.input[0].type.tensor_type.shape.dim[place].dim_value = side
    assert read_model(written(tmp_path, large), SIZE)


def divided(op: str, divisor: Any, kind: int) -> Any:
    """5 divided by 1 - the largest pixel, or by a constant, as integers or floats."""
    onnx = import_onnx()
    helper, dtype = onnx.helper, onnx.helper.tensor_dtype_to_np_dtype(kind)
    numbers = {"five": 5, "one": 1, "constant": divisor or 0}.items()
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["i"], to=kind),
        helper.make_node("Sub", ["one", "i"], ["computed"]),
        helper.make_node(op, ["five", "computed" if divisor is None else "constant"], ["q"]),
        helper.make_node("Cast", ["q"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    from_array = onnx.numpy_helper.from_array
    tensors = [from_array(np.array(number, dtype), name) for name, number in numbers]
    return model(*nodes, tensors=tensors)


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integers_divided_by_what_may_be_zero_are_refused(tmp_path: Path, op: str) -> None:
    """The blank image is divided by 1; a white one would end this process."""
    types = import_onnx().TensorProto
    for divisor in (None, 0, -1) if op == "Div" else (None,):
        path = written(tmp_path, divided(op, divisor, types.INT32))
        with pytest.raises(DataError, match=f"the {op} '' divides integers by a number that may"):
            read_model(path, SIZE)
    assert read_model(written(tmp_path, divided(op, 2, types.INT32)), SIZE)
    if op == "Div":
        assert read_model(written(tmp_path, divided(op, None, types.FLOAT)), SIZE)


def test_a_sound_file_is_its_content(tmp_path: Path) -> None:
    path = written(tmp_path, added(tensor()))
    # Its own folder may be reached by a link, as downloaded files often are.
    (tmp_path / "other.onnx").symlink_to(path)
    assert read_model(tmp_path / "other.onnx", SIZE) == path.read_bytes()


@pytest.mark.timeout(60)
def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "self.onnx").symlink_to("self.onnx")
    (tmp_path / "folder.onnx").mkdir()
    for name in ("pipe.onnx", "self.onnx", "folder.onnx", "missing.onnx", "/dev/zero"):
        with pytest.raises(DataError, match="no regular file|cannot be read") as caught:
            read_model(tmp_path / name, SIZE)
        assert name in str(caught.value) and "\n" not in str(caught.value)


def test_other_formats_and_commands_for_a_terminal_are_refused(tmp_path: Path) -> None:
    """ONNX Runtime's own format is read without these checks."""
    path = written(tmp_path, model(import_onnx().helper.make_node("\x1b[2J", ["x"], ["y"])))
    with pytest.raises(DataError) as caught:
        read_model(path, SIZE)
    assert "\x1b" not in str(caught.value)
    path.write_bytes(b"\x18\0\0\0ORTM" + bytes(100))
    with pytest.raises(DataError, match="refused as an ONNX model"):
        read_model(path, SIZE)


@pytest.mark.parametrize(
    ("package", "load"), [("onnx", import_onnx), ("onnxruntime", import_onnxruntime)]
)
def test_a_missing_package_is_one_line(package, load, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"the package {package} cannot be imported .*'make env'"):
        load()
