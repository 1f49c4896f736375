"""Readers of networks: graphs, parameters, class centers, state dicts, and ONNX files.

What imports MXNet, which takes seconds, is imported where it is used.
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
from argparse import Namespace
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Optional

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from evaluation.export.arcface_torch import read_state_dict
from evaluation.network import open_network
from partial_fc.initial import read_centers
from partial_fc.shard import Shard
from runtime.untrusted import child
from runtime.untrusted.onnx_model import import_onnx
from tests.fuzz.reader import Reader, file_reader, refusals

_SIZE = (32, 32)
_IMAGES = np.zeros((2, 3, *_SIZE), np.uint8)
_SECRET = np.float32(12345.678)
# A process that tries networks out grows a little with each.
_INPUTS_OF_A_CHILD = 500
_HUGE = [0, -1, 1, 1 << 20, 1 << 31, (1 << 31) - 1, 1 << 40, (1 << 62) + 1, -(1 << 63)]
_PLACES = ["secret", "/etc/passwd", "../secret", "", "a/../../secret", "*/_ORT_MEM_ADDR_/*"]
_SPOILS = "external dims type control-flow domain shape operator version".split()
# Operators of a chain on images {x}, with a number {n} that is mostly 1.
_LAYERS = [
    "Conv <pads=[1, 1, 1, {n}], strides=[1, {n}]> ({x}, kernel)",
    "MaxPool <kernel_shape=[2, {n}], pads=[0, 0, 1, 1]> ({x})", "Relu ({x})",
    "BatchNormalization ({x}, ones, ones, ones, ones)", "PRelu ({x}, column)",
    "Transpose <perm=[0, 1, 3, 2]> ({x})", "Transpose <perm=[0, 1, 2, {n}]> ({x})",
    "Concat <axis=2> ({x}, {x})", "Concat <axis={n}> ({x}, {x})", "Reshape ({x}, same)",
    "Expand ({x}, sides)", "Tile ({x}, sides)", "Pad ({x}, padding)", "Add ({x}, filled)",
    'Resize <mode="nearest"> ({x}, , , sides)',
]  # fmt: skip
# What gives a row per image, or does not, and its type.
_ENDS = [("Flatten (means)", "float")] * 6 + [
    ("ReduceMean <keepdims=0> (means)", "float"), ("Cast <to=8> (means)", "string"),
    ("ReduceMean <axes=[0], keepdims=0> (means)", "float"), ("Reshape (means, row)", "float"),
    ("SequenceConstruct (means)", "seq(float)"), ("Optional (means)", "optional(float)"),
    ("Identity (means)", "float"),
]  # fmt: skip


def keep_children() -> None:
    """Keep the processes that try networks out: they take seconds to start. Replace dead ones."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    numbers = count(1)

    def end(module: str) -> int:
        process = processes.pop(module)
        process.communicate()
        return process.returncode

    def ask(module: str, header: dict[str, Any], content: bytes, memory: int) -> Optional[str]:
        if next(numbers) % _INPUTS_OF_A_CHILD == 0 and module in processes:
            end(module)
        if module not in processes:
            processes[module] = child.start(module, subprocess.DEVNULL)
        process = processes[module]
        reply = b""
        with suppress(BrokenPipeError):
            process.stdin.write(child.request(header, content, memory))
            process.stdin.flush()
            reply = process.stdout.readline()
        return child.reason(reply, 0 if reply else end(module), b"")

    setattr(child, "ask", ask)  # noqa: B010 (typed as a function)


def _export(folder: Path) -> None:
    from backbones.model import Backbone
    from backbones.options import BackboneOptions

    options = BackboneOptions(network="tiny", embedding_size=8)
    Backbone.create(options, image_size=_SIZE, seed=0).export(folder / "model")


def _params_seeds(folder: Path) -> list[bytes]:
    from runtime.mxnet import mx

    _export(folder)
    arrays = {f"arg:{t}": mx.nd.ones((2, 3), dtype=t) for t in ("float16", "int64", "uint8")}
    mx.nd.save(str(folder / "types"), arrays)
    mx.nd.save(str(folder / "list"), list(arrays.values()))
    oldest = struct.pack("<QQQIIIiiiff", 0x112, 0, 1, 2, 1, 2, 1, 0, 0, 1.0, 2.0)
    oldest += struct.pack("<QQ", 1, 1) + b"a"
    names = ("model-0000.params", "types", "list")
    return [*((folder / name).read_bytes() for name in names), oldest]


def _use_params(path: Path) -> None:
    from backbones.model import Backbone

    Backbone.load(path.with_name("model"), image_size=_SIZE)


def _centers_seeds(_: Path) -> list[bytes]:
    """A matrix as MXNet saves it, in both forms, and one with a name."""
    seeds = []
    for magic, names in ((0xF993FAC9, b""), (0xF993FACA, b""), (0xF993FAC9, b"a")):
        head = struct.pack("<QQQIiiqqiii", 0x112, 0, 1, magic, 0, 2, 5, 4, 1, 0, 0)
        values = np.arange(20, dtype="<f4").tobytes()
        listed = struct.pack("<Q", len(names)) + (struct.pack("<Q", 1) + names) * len(names)
        seeds.append(head + values + listed)
    return seeds


def _read_centers(folder: Path, content: bytes) -> None:
    """As the file of each of two ranks, the other one being whole."""
    whole = _centers_seeds(folder)[0]
    for contents in ((content, whole), (whole, content)):
        for rank, one in enumerate(contents):
            (folder / f"{rank}_centers.param").write_bytes(one)
        for shard in (Shard(0, 1, 10), Shard(1, 3, 9)):
            assert read_centers(folder, shard, 4).shape == (shard.size, 4)


def _make_graph(rng: random.Random) -> bytes:
    from tests.fuzz.graph_inputs import make_graph

    return make_graph(rng)


def _symbol_seeds(folder: Path) -> list[bytes]:
    """A network in two forms, and accepted graphs, in which damage is likely to matter."""
    keep_children()
    _export(folder)
    path = folder / "model-symbol.json"
    symbol = path.read_bytes()
    graph = json.loads(symbol)
    for node in graph["nodes"]:
        if "attrs" in node:
            node["attr"] = node.pop("attrs")
    del graph["attrs"]
    seeds = [symbol, json.dumps(graph).encode()]
    for number in range(20):
        path.write_bytes(_make_graph(random.Random(number)))
        with refusals():
            _use_symbol(path)
            seeds.append(path.read_bytes())
    return seeds


def _use_symbol(path: Path) -> None:
    """A graph, with parameters of the shapes it asks for, and one image through the network."""
    from backbones.graph.symbol_file import infer_shapes, read_graph
    from backbones.model import Backbone
    from runtime.untrusted.parameter_file import write_parameters

    shapes = infer_shapes(read_graph(path), _SIZE, path)
    if sum(map(np.prod, shapes.values())) > 1 << 20:
        return
    with path.with_name("model-0000.params").open("wb") as file:
        arrays = {f"arg:{name}": np.ones(shape, np.float32) for name, shape in shapes.items()}
        write_parameters(file, arrays)
    Backbone.load(path.with_name("model"), image_size=_SIZE).extract(_IMAGES)


def _onnx_seeds(folder: Path) -> list[bytes]:
    keep_children()
    (folder.parent / "read" / "secret").write_bytes(np.full(4, _SECRET, np.float32).tobytes())
    return [_make_onnx(random.Random(number)) for number in range(20)]


def _use_onnx(path: Path) -> None:
    """As a network for faces, which gets one image."""
    given = {"dtype": "float32", "batch_size": 1, "no_flip": True}
    options = Namespace(image_size=_SIZE, model=path, **given)
    assert not np.isin(open_network(options).extract(_IMAGES), [_SECRET]).any()


def _state_dict_seeds(_: Path) -> list[bytes]:
    """Several types, and short files, most of which is a header."""
    tensors: dict[str, NDArray[Any]] = {
        "conv1.weight": np.arange(54, dtype=np.float32).reshape(2, 3, 3, 3),
        "bn1.num_batches_tracked": np.array(7, np.int64),
        "half": np.ones((2, 2), np.float16),
    }
    small = safetensors.numpy.save({"a": np.ones(2, np.float32)}, {"format": "pt"})
    return [safetensors.numpy.save(tensors), small, small, safetensors.numpy.save({})]


def _read_state_dict(folder: Path, content: bytes) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(content)
    assert sum(one.nbytes for one in read_state_dict(path).values()) <= len(content)


def _make_onnx(rng: random.Random) -> bytes:
    """Return a file that is almost right, or has something that no file of others may have."""
    onnx, lines, last = import_onnx(), ["filled = ConstantOfShape (sides)"], "x"
    for number in range(rng.randrange(1, 6)):
        size = rng.choice([1, 1, 1, 2, 3, *_HUGE]) if rng.random() < 0.15 else 1
        lines.append(f"y{number} = {rng.choice(_LAYERS).format(x=last, n=size)}")
        last = f"y{number}"
    end, kind = rng.choice(_ENDS)
    body = " ".join([*lines, f"means = GlobalAveragePool ({last})", f"out = {end}"])
    text = f"g (float[b, 3, 32, 32] x) => ({kind} out) {{ {body} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 15]> {text}')
    if kind in ("float", "string"):
        model.graph.output[0].type.tensor_type.ClearField("shape")
    shapes: dict[str, list[int]] = {"same": [0, 0, -1, 32], "sides": [1] * 4, "padding": [0] * 8}
    for name, usual in {**shapes, "row": rng.choice([[1, -1], [-1], [-1, 1]])}.items():
        sides = rng.choices([1, *_HUGE], k=len(usual)) if rng.random() < 0.1 else usual
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(sides), name))
    for name, shape in {"kernel": (3, 3, 3, 3), "ones": 3, "column": (3, 1, 1)}.items():
        ones = np.ones(shape, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(ones, name))
    if rng.random() < 0.6:
        _spoil(model, rng)
    content: bytes = model.SerializeToString()
    return content


def _spoil(model: Any, rng: random.Random) -> None:
    """Make one thing of a model wrong."""
    graph, node = model.graph, rng.choice(model.graph.node)
    tensor, way = rng.choice(graph.initializer), rng.choice(_SPOILS)
    if way == "external":
        for key, value in (("location", rng.choice(_PLACES)), ("offset", "0"), ("length", "4")):
            if rng.random() < 0.8:
                number = str(rng.choice(_HUGE)) if rng.random() < 0.5 else value
                tensor.external_data.add(key=key, value=value if key == "location" else number)
        if rng.random() < 0.8:
            tensor.data_location = 1
        if rng.random() < 0.7:
            tensor.ClearField("raw_data")
    elif way == "dims":
        tensor.dims[:] = rng.choices(_HUGE, k=rng.randrange(5))
    elif way == "type":
        tensor.data_type = rng.randrange(24)
        if rng.random() < 0.5:
            tensor.ClearField("raw_data")
            tensor.string_data.extend([b"a"] * rng.randrange(3))
            tensor.int32_data.extend([1] * rng.randrange(3))
    elif way == "control-flow":
        node.op_type = rng.choice(("If", "Loop", "Scan", "SequenceMap", node.op_type))
        node.attribute.add(name="body", type=5).g.CopyFrom(graph)
    elif way == "domain":
        node.domain = rng.choice(("com.microsoft", "custom", "ai.onnx.ml", "ai.onnx", "\x1b[2J"))
        model.opset_import.add(domain=node.domain, version=1)
    elif way == "shape":
        value = rng.choice([*graph.input, *graph.output])
        for dim in value.type.tensor_type.shape.dim:
            if rng.random() < 0.5:
                dim.dim_value = rng.choice(_HUGE)
        value.type.tensor_type.elem_type = rng.choice((1, 1, 2, 10, 16, 0))
    elif way == "operator":
        ops = "RandomNormal Range NonZero LSTM Einsum TfIdfVectorizer Gather".split()
        node.op_type = rng.choice([*ops, ""])
    else:
        model.ir_version = rng.choice(_HUGE)
        model.opset_import[0].version = rng.choice([*_HUGE, 1, 7, 13, 21])


_read_symbol = file_reader(_use_symbol, "model-symbol.json")
MODEL_READERS = {
    "params": Reader(_params_seeds, file_reader(_use_params, "model-0000.params", make=_export), 6),
    "centers": Reader(_centers_seeds, _read_centers, 8),
    "symbol": Reader(_symbol_seeds, _read_symbol, 4),
    "graphs": Reader(_symbol_seeds, _read_symbol, 8, _make_graph),
    "onnx": Reader(_onnx_seeds, file_reader(_use_onnx, "model.onnx"), 8, _make_onnx),
    "state-dict": Reader(_state_dict_seeds, _read_state_dict, 8),
}
