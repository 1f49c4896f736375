"""ONNX files, checked before this process runs them; the only import of ``onnx``.

An ONNX file may name other files, whose bytes become weights and so come out in embeddings; it may
loop, and promise tensors of any size. So every command that opens one does so here: what a network
for images does not need is refused, and the rest is tried out in another process
(``runtime.untrusted.child``). Neither package is imported before a function here is called, so that
training does without them; and protobuf, which ``onnx`` imports, gets the environment that lets it
live beside MXNet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Optional

import numpy as np

from runtime import environment
from runtime.errors import DataError
from runtime.files import as_data_error, read_file
from runtime.untrusted import child

# ONNX Runtime's number for what ends the process; other errors are exceptions as well.
_FATAL = 4
# protobuf limits a message, and so a model in one file, to this size.
_MAX_BYTES = (1 << 31) - 1
_DOMAINS = ("", "ai.onnx")
_CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")
_TYPES = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8}
_DIVISIONS = ("Div", "Mod")
# ONNX's numbers of float32, float16, float64 and bfloat16.
_FLOATS = (1, 10, 11, 16)


def import_onnx() -> Any:
    """Return the package ``onnx``."""
    environment.prepare()
    import onnx

    return onnx


def read_model(path: Path, image_size: tuple[int, int]) -> bytes:
    """Return the content of a file that ONNX Runtime can run, tried out in another process.

    Args:
        path: the file.
        image_size: height and width of the images, if the file leaves them open.

    Raises:
        DataError: the file is missing, no model, or one that is refused.
    """
    with as_data_error(f"{path} cannot be read", "name an ONNX file"):
        content = read_file(path, _MAX_BYTES)
    header = {"image_size": image_size}
    memory = child.GIGABYTE + 4 * len(content)
    reason = child.ask("runtime.untrusted.onnx_model", header, content, memory)
    if reason is not None:
        raise DataError(f"{path} is refused as an ONNX model: {reason}")
    return content


def open_session(content: bytes, threads: int) -> Any:
    """Return ONNX Runtime's session, on the processor, for a model of ``read_model`` or our own.

    Raises:
        DataError: ONNX Runtime refuses the model.
    """
    import onnxruntime as runtime

    _limit_memory()
    options = runtime.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = _FATAL
    # Else the content decides between this and a format of ONNX Runtime's own.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    # Its exceptions have no common class but this one.
    except Exception as error:
        raise DataError(f"ONNX Runtime refuses it ({child.one_line(str(error))})") from None


@lru_cache(maxsize=None)
def _limit_memory() -> None:
    """Let all sessions of this process together take half of the machine's memory.

    A network was tried out with one image, and may take a power of the number of images.
    """
    import onnxruntime as runtime

    kinds = runtime.OrtAllocatorType, runtime.OrtMemType
    place = runtime.OrtMemoryInfo("Cpu", kinds[0].ORT_ARENA_ALLOCATOR, 0, kinds[1].DEFAULT)
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    runtime.create_and_register_allocator(place, runtime.OrtArenaCfg({"max_mem": half}))


def check(content: bytes) -> None:
    """Refuse what a network for images does not need and a file of others must not have.

    Raises:
        DataError: there is such a thing anywhere in the model.
    """
    model = import_onnx().ModelProto()
    model.ParseFromString(content)
    for message in _messages(model):
        what = _unneeded(message)
        if what is not None:
            raise DataError(f"it has {what}, which no network for images needs; export it without")
    _check_divisions(model)


def _messages(model: Any) -> Iterator[Any]:
    """Yield all messages of a model: its graph, functions, subgraphs, attributes, and tensors."""
    waiting = [model]
    while waiting:
        message = waiting.pop()
        yield message
        for field, value in message.ListFields():
            if field.message_type is not None:
                waiting.extend(value if field.label == field.LABEL_REPEATED else [value])


def _unneeded(message: Any) -> Optional[str]:
    """Return the words for a part of a model that is refused, None for another."""
    kind = type(message).__name__
    if kind == "TensorProto" and (message.external_data or message.data_location):
        location = {one.key: one.value for one in message.external_data}.get("location", "")
        raise DataError(
            f"the tensor {message.name!r:.80} is in another file, {location!r:.80}, which is not "
            "opened; write the model into one file: onnx.save(onnx.load(old), new)"
        )
    if kind == "NodeProto" and (message.domain not in _DOMAINS or message.op_type in _CONTROL_FLOW):
        return f"the operator {message.op_type!r:.80} of {message.domain!r:.80}"
    return {"SparseTensorProto": "a sparse tensor", "FunctionProto": "a function"}.get(kind)


def _check_divisions(model: Any) -> None:
    """Refuse integers that are divided by what depends on the image; drops the weights.

    A division by 0 ends the process, and so does that of the least integer by -1.
    """
    nodes = [node for node in model.graph.node if node.op_type in _DIVISIONS and node.input]
    nodes = [node for node in nodes if not _divides_all(model.graph, node.input[-1])]
    types = _types(model) if nodes else {}
    for node in nodes:
        if types.get(node.input[-1]) not in _FLOATS:
            raise DataError(
                f"the {node.op_type} {node.name!r:.80} divides integers by a number that may be 0, "
                "which would end the process; export it with a Cast to float before it"
            )


def _divides_all(graph: Any, name: str) -> bool:
    """True if any integer can be divided by a value of a graph, which is a constant."""
    onnx = import_onnx()
    found = [tensor for tensor in graph.initializer if tensor.name == name]
    for node in graph.node:
        if node.op_type == "Constant" and name in node.output and node.attribute:
            found.append(onnx.helper.get_attribute_value(node.attribute[0]))
    is_tensor = [isinstance(one, onnx.TensorProto) for one in found]
    values = map(onnx.numpy_helper.to_array, found) if all(is_tensor) else found
    return bool(found) and not any(np.isin(one, (0, -1)).any() for one in values)


def _types(model: Any) -> dict[str, int]:
    """Return the types of a model's tensors by name, as ONNX infers them; drops the weights."""
    onnx, graph = import_onnx(), model.graph
    for tensor in graph.initializer:
        describe = onnx.helper.make_tensor_value_info
        graph.input.append(describe(tensor.name, tensor.data_type, tensor.dims))
    del graph.initializer[:], graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(model).graph
    known = [*inferred.value_info, *inferred.input, *inferred.output]
    return {value.name: value.type.tensor_type.elem_type for value in known}


def _try(header: dict[str, Any], content: bytes) -> None:
    """Check a model, and run it on a blank image if it takes one."""
    check(content)
    session = open_session(content, threads=1)
    first, *others = session.get_inputs()
    if others or len(first.shape) != 4 or first.type not in _TYPES:
        return
    usual = (1, 3, *header["image_size"])
    shape = [side if isinstance(side, int) else usual[i] for i, side in enumerate(first.shape)]
    child.limit(header["memory"], shape[0])
    try:
        session.run(None, {first.name: np.zeros(shape, _TYPES[first.type])})
    except Exception as error:
        raise DataError(
            f"it fails on images {shape} ({child.one_line(str(error))}); give the size of images "
            "that it was trained with"
        ) from None


if __name__ == "__main__":
    child.serve(_try)
