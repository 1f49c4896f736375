"""ONNX files of others: refused alike by all commands, or tried out in a child process."""

import re
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.errors import DataError
from runtime.untrusted import child
from runtime.untrusted.onnx_model import import_onnx, read_model
from tests.support.sets import assert_refused

# A child that runs the content of a request as Python, with short clocks.
PROGRAM = """
import ctypes, os, time
from pathlib import Path
from runtime.errors import DataError
from runtime.untrusted import child
child.CPU_SECONDS, child.WALL_SECONDS = 1, 5
child.serve(lambda header, content: exec(content))
"""
TOO_LONG = "it takes more than 6 s for an image, or 120 s in all"
SIZE = (4, 4)
_CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")
BODY = "body (float[b,3,4,4] x) => (float[b,3,4,4] y) { y = Relu(x) }"
LOOPS = f"""<domain: "own", opset_import: ["": 13]> F (a) => (b) {{ b = Loop<body = {BODY}>(a) }}"""
REFUSED = (
    *((f"y = {op}<body = {BODY}>(x)", "", f"the operator .{op}. of") for op in _CONTROL_FLOW),
    ("y = own.F(x)", LOOPS, "of .own.|a function"),
    ("y = Relu(x)", LOOPS, "it has a function"),
    ("y = com.microsoft.Relu(x)", "", "'com.microsoft'"),
)


@pytest.mark.parametrize(("code", "reason"), [
    ("pass", None),
    ("os.write(1, b'null\\n' * 10)", None),
    ("ctypes.string_at(0)", r"it ends the process that tries it out \(SIGSEGV\)"),
    ("os._exit(3)", "the process that tries it out fails .*"),
    ("bytearray(header['memory'] * 2)", "it needs more than 64 MiB of memory"),
    (r"raise DataError('no \x1b[2Jnetwork\nof lines')", r"no \\x1b\[2Jnetwork"),
    ("Path(header['path']).write_bytes(b'a')", ".+"),
    ("while True: pass", TOO_LONG),
    # Its own clock ends it, whether or not the process that asked is still there.
    ("time.sleep(1000)", TOO_LONG),
])  # fmt: skip
def test_the_reason_is_one_line_and_no_file_is_written(code, reason, monkeypatch, tmp_path) -> None:
    start = subprocess.Popen

    def with_program(command: list[str], **rest: Any) -> object:
        return start([command[0], "-c", PROGRAM], **rest)

    monkeypatch.setattr(subprocess, "Popen", with_program)
    began, path = time.monotonic(), tmp_path / "made"
    said = child.ask("a.module", {"path": str(path)}, code.encode(), memory=64 << 20)
    assert time.monotonic() - began < 60
    assert not path.exists() or not path.stat().st_size
    assert said is None if reason is None else re.fullmatch(reason, said or "")


def model(body: str, *tensors: Any, numbers: str = "", functions: str = "") -> Any:
    """A network from images ``x`` to ``out``, of the nodes that make ``y``."""
    text = '<ir_version: 7, opset_import: ["": 13, "own": 1, "com.microsoft": 1]> g '
    text += f"(float[b,3,4,4] x) => (float[b,n] out) <{numbers}> {{ {body} out = Flatten(y) }}"
    made = import_onnx().parser.parse_model(f"{text} {functions}")
    made.graph.initializer.extend(tensors)
    return made


def added(tensor: Any) -> Any:
    return model("y = Add(x, w)", tensor)


def tensor(*shape: int) -> Any:
    onnx = import_onnx()
    return onnx.numpy_helper.from_array(np.ones(shape or (3, 4, 4), np.float32), "w")


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


def test_weights_in_another_file_are_refused(tmp_path: Path) -> None:
    # ONNX Runtime takes the offset in the last place for an address.
    places = ("/etc/passwd", "theirs/../../secret", "../secret", "*/_ORT_MEM_ADDR_/*")
    models = [added(outside(place)) for place in places]
    models.append(model("c = Constant<value = float {1}>() y = Add(x, c)"))
    models[-1].graph.node[0].attribute[0].t.CopyFrom(outside("../secret"))
    for made in models:
        path = written(tmp_path, made)
        assert_refused(f"{path} .*the tensor 'w' is in another file", read_model, path, SIZE)


def test_what_no_network_for_images_needs_is_refused(tmp_path: Path) -> None:
    for body, functions, words in REFUSED:
        path = written(tmp_path, model(body, functions=functions))
        assert_refused(words, read_model, path, SIZE)
    sparse = model("y = Relu(x)")
    sparse.graph.sparse_initializer.add(dims=[1 << 40])
    assert_refused("it has a sparse tensor", read_model, written(tmp_path, sparse), SIZE)


def test_a_tensor_that_promises_more_than_the_file_has_is_refused(tmp_path: Path) -> None:
    for dims in ([1 << 40], [-4, 12], [49, 1 << 62, 4]):
        promising = tensor()
        promising.dims[:] = dims
        used = model("s = Size(w) f = Cast<to = 1>(s) y = Add(x, f)", promising)
        message = "refused as .*: (ONNX Runtime refuses it|it needs)"
        assert_refused(message, read_model, written(tmp_path, used), SIZE)


def of_shape(side: int) -> Any:
    nodes = "c = ConstantOfShape(s) m = ReduceMax<keepdims = 0>(c) y = Add(x, m)"
    return model(nodes, numbers=f"int64[1] s = {{{side}}}")


def test_a_file_gets_the_memory_that_its_batch_needs(tmp_path: Path) -> None:
    path = written(tmp_path, of_shape(1 << 33))
    assert path.stat().st_size < 300
    assert_refused("it needs more than 1024 MiB of memory", read_model, path, SIZE)
    # Its own folder may be reached by a link, as downloaded files often are.
    (tmp_path / "link.onnx").symlink_to(written(tmp_path, of_shape(1 << 10)))
    assert read_model(tmp_path / "link.onnx", SIZE) == path.read_bytes()
    # One gigabyte for an image is not enough for 32 of 24 MiB, with results as large.
    large = added(tensor(3, 1, 1))
    for place, side in enumerate((32, 3, 512, 4096)):
        large.graph.input[0].type.tensor_type.shape.dim[place].dim_value = side
    assert read_model(written(tmp_path, large), SIZE)


def divided(op: str, divisor: str, kind: str = "int32") -> Any:
    """5 divided by 1 - the largest pixel, or by a constant, as integers or floats."""
    nodes = f"""
        m = ReduceMax<keepdims = 0>(x) i = Cast<to = {1 if kind == "float" else 6}>(m)
        computed = Sub(one, i) inner = Constant<value = {kind} {{0}}>()
        whole = Constant<value = {kind} {{3}}>()
        q = {op}(five, {divisor}) f = Cast<to = 1>(q) y = Add(x, f)"""
    values = {"five": 5, "one": 1, "zero": 0, "minus": -1, "two": 2}.items()
    return model(nodes, numbers=", ".join(f"{kind} {name} = {{{one}}}" for name, one in values))


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integers_divided_by_what_may_be_zero_are_refused(tmp_path: Path, op: str) -> None:
    """The blank image is divided by 1; a white one would end this process."""
    for divisor in ("computed", "zero", "minus", "inner"):
        path = written(tmp_path, divided(op, divisor))
        assert_refused(f"the {op} '' divides integers by a number", read_model, path, SIZE)
    assert all(read_model(written(tmp_path, divided(op, one)), SIZE) for one in ("two", "whole"))
    if op == "Div":
        assert read_model(written(tmp_path, divided(op, "computed", "float")), SIZE)


def test_other_formats_and_commands_for_a_terminal_are_refused(tmp_path: Path) -> None:
    """ONNX Runtime's own format is read without these checks."""
    odd = model("y = Relu(x)")
    odd.graph.node[0].op_type = "\x1b[2J"
    path = written(tmp_path, odd)
    with pytest.raises(DataError) as caught:
        read_model(path, SIZE)
    assert "\x1b" not in str(caught.value)
    path.write_bytes(b"\x18\0\0\0ORTM" + bytes(100))
    assert_refused("refused as an ONNX model", read_model, path, SIZE)
