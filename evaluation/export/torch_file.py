"""PyTorch's file of a state dict (``.pt``), read and written without PyTorch.

Such a file is a zip archive of one pickle, which has names, shapes and places of tensors, and of an
entry for each tensor with its bytes. PyTorch needs more room than all of this toolkit, so it is not
asked for; safetensors, which would need a package as well, is not what arcface_torch loads. A
pickle is a program that can call any function of Python, and checkpoints come from strangers: the
machine here has no instruction that does. It knows the few names by which PyTorch writes tensors,
as marks, and every other name is an error.
"""

from __future__ import annotations

import io
import math
import os
import pickletools
import struct
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DataError
from runtime.files import open_regular

_ROOT = "archive"
_REBUILD = "torch._utils _rebuild_tensor_v2"
_STORAGES = {
    "torch FloatStorage": "<f4",
    "torch DoubleStorage": "<f8",
    "torch HalfStorage": "<f2",
    "torch LongStorage": "<i8",
}
_NAMES = {np.dtype(dtype).str: name for name, dtype in _STORAGES.items()}
_MARKS = frozenset((_REBUILD, "collections OrderedDict", *_STORAGES))
# An r200 has 0.3 MB, and as much for each moment of its optimizer. A byte may make an object.
_MAX_PICKLE = 1 << 21
_MAX_NOTE = 1 << 16
_MAX_KEY = 1 << 20
_MARK = object()


class _Damaged(Exception):
    """The file is damaged, or holds something else than tensors by name; the message says what."""


class _Name(NamedTuple):
    """One of ``_MARKS``."""

    name: str


def write_state_dict(
    file: BinaryIO, tensors: Mapping[str, NDArray[Any]], note: tuple[str, bytes]
) -> None:
    """Write tensors by name as ``torch.save`` does; ``torch.load`` reads them with weights only.

    Args:
        file: where to.
        tensors: float32, float64, float16 or int64.
        note: name and content of one more entry, which PyTorch does not read.

    Raises:
        OSError: they cannot be written.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, f"{_ROOT}/data.pkl", _pickled(tensors))
        _add(archive, f"{_ROOT}/byteorder", b"little")
        for number, array in enumerate(tensors.values()):
            _add(archive, f"{_ROOT}/data/{number}", np.ascontiguousarray(array).tobytes())
        _add(archive, f"{_ROOT}/{note[0]}", note[1])
        _add(archive, f"{_ROOT}/version", b"3\n")


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    # Without the time of day, so that equal tensors make equal files.
    archive.writestr(zipfile.ZipInfo(name), content)


def _pickled(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the program that makes an OrderedDict of tensors; ``pickletools`` has its codes."""

    def text(value: str) -> bytes:
        encoded = value.encode()
        return b"X" + struct.pack("<I", len(encoded)) + encoded

    def name(value: str) -> bytes:
        module, _, attribute = value.partition(" ")
        return f"c{module}\n{attribute}\n".encode()

    def integers(values: Iterable[int]) -> bytes:
        return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"

    ordered = name("collections OrderedDict") + b")R"
    parts = [b"\x80\x02", ordered, b"("]
    for number, (key, array) in enumerate(tensors.items()):
        strides = [math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim)]
        storage = name(_NAMES[array.dtype.str]) + text(str(number)) + text("cpu")
        size = b"J" + struct.pack("<i", array.size)
        place = b"(" + text("storage") + storage + size + b"tQ"
        # Storage, offset, shape, strides, no gradient, no hooks.
        arguments = place + b"K\x00" + integers(array.shape) + integers(strides) + b"\x89" + ordered
        parts += [text(key), name(_REBUILD), b"(", arguments, b"tR"]
    return b"".join([*parts, b"u."])


def read_state_dict(path: Path, note: str) -> tuple[dict[str, NDArray[Any]], Optional[bytes]]:
    """Read the tensors of a file by name, and the content of the entry ``note`` if there is one.

    Of a checkpoint of arcface_torch (``checkpoint_gpu_0.pt``) those of the backbone.

    Raises:
        DataError: the file is missing, damaged, or holds something else.
    """
    if not os.path.isfile(path):
        raise DataError(f"{path} does not exist; give the .pt file of a state dict")
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return _Reader(archive, os.fstat(file.fileno()).st_size).read(note)
    except _Damaged as damage:
        raise DataError(f"{path} is no state dict of PyTorch: {damage}; save it again") from None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, RuntimeError) as error:
        # Offsets that no file has, and names that are no UTF-8, are ValueErrors;
        # NotImplementedError, of an unknown compression, is a RuntimeError.
        raise DataError(
            f"{path} cannot be read ({str(error)!r:.200}); save it with torch.save of PyTorch 1.6 "
            "or later"
        ) from None


class _Reader:
    """Reads one archive."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive = archive
        roots = [
            name[: -len("data.pkl")] for name in archive.namelist() if name.endswith("/data.pkl")
        ]
        if len(roots) != 1:
            raise _Damaged("it has no data.pkl")
        self._root = roots[0]
        self._size = size
        # Bytes that tensors may still take: as many as the file has, whatever its directory says.
        self._allowance = size
        self._storages: dict[str, bytes] = {}

    def read(self, note: str) -> tuple[dict[str, NDArray[Any]], Optional[bytes]]:
        order = self._root + "byteorder"
        if order in self._archive.namelist() and self._content(order, 16) != b"little":
            raise _Damaged("its bytes are in another order")
        found = _Machine(self._content(self._root + "data.pkl", _MAX_PICKLE), self._tensor).run()
        if isinstance(found, dict) and isinstance(found.get("state_dict_backbone"), dict):
            found = found["state_dict_backbone"]
        if not isinstance(found, dict) or not found:
            raise _Damaged("it has no tensors by name")
        for name, value in found.items():
            if not isinstance(name, str) or not isinstance(value, np.ndarray):
                raise _Damaged(f"{name!r:.80} is no tensor")
        has_note = self._root + note in self._archive.namelist()
        return found, self._content(self._root + note, _MAX_NOTE) if has_note else None

    def _content(self, name: str, most: int) -> bytes:
        try:
            entry = self._archive.getinfo(name)
        except KeyError:
            raise _Damaged(f"it lacks {name!r:.80}") from None
        # PyTorch does not compress; what is compressed may be of any size.
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > most:
            raise _Damaged(f"{name!r:.80} is compressed, or larger than it can be")
        # zipfile allocates the former and seeks the latter without a look at the file's size.
        if entry.compress_size != entry.file_size or not 0 <= entry.header_offset < self._size:
            raise _Damaged(f"{name!r:.80} has a size or a place that the file cannot have")
        return self._archive.read(entry)

    def _tensor(self, arguments: Any) -> NDArray[Any]:
        """Return what ``_rebuild_tensor_v2`` would return."""
        if not isinstance(arguments, tuple) or len(arguments) < 4:
            raise _Damaged("a tensor without its place")
        place, offset, shape, strides = arguments[:4]
        if not isinstance(place, tuple) or len(place) != 5 or place[0] != "storage":
            raise _Damaged("a tensor in no storage")
        _, kind, key, _, count = place
        numbers = (offset, count, *_integers(shape), *_integers(strides))
        if not isinstance(kind, _Name) or kind.name not in _STORAGES or not isinstance(key, str):
            raise _Damaged("a tensor of another type than float or int64")
        if not all(type(number) is int and 0 <= number < 1 << 40 for number in numbers):
            raise _Damaged("a tensor with a size that is no number")
        last = offset + sum((size - 1) * step for size, step in zip(shape, strides))
        if len(shape) != len(strides) or math.prod(shape) > count or last >= count or 0 in shape:
            raise _Damaged("a tensor that is larger than its storage")
        dtype = np.dtype(_STORAGES[kind.name])
        self._allowance -= math.prod(shape) * dtype.itemsize
        if self._allowance < 0:
            raise _Damaged("tensors that are larger than the file")
        # Several tensors may be parts of one storage.
        if key not in self._storages:
            name = f"{self._root}data/{key}"
            self._storages[key] = self._content(name, count * dtype.itemsize)
        content = self._storages[key]
        if len(content) != count * dtype.itemsize:
            raise _Damaged("a storage of another size")
        flat = np.frombuffer(content, dtype)[offset:]
        steps = [step * dtype.itemsize for step in strides]
        return np.lib.stride_tricks.as_strided(flat, shape, steps).copy()


def _is_key(value: Any) -> bool:
    """Return True for text and the numbers of parameters; larger integers may have one hash."""
    return isinstance(value, str) or (isinstance(value, int) and 0 <= value < _MAX_KEY)


def _integers(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or len(value) > 8:
        raise _Damaged("a tensor with a shape that is none")
    return value


class _Machine:
    """Runs the instructions of one pickle; see ``pickletools`` for their meanings."""

    def __init__(self, content: bytes, tensor: Any) -> None:
        self._content, self._tensor = content, tensor
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        try:
            for opcode, argument, _ in pickletools.genops(io.BytesIO(self._content)):
                if opcode.name == "STOP":
                    return self._stack.pop()
                self._execute(opcode.name, argument)
        except (IndexError, KeyError, ValueError, TypeError) as error:
            raise _Damaged(f"it is damaged ({str(error)!r:.80})") from None
        raise _Damaged("it has no end")

    def _execute(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "BINFLOAT"):
            stack.append(argument)
        elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        elif name in ("EMPTY_TUPLE", "EMPTY_DICT", "EMPTY_LIST"):
            stack.append({"EMPTY_TUPLE": (), "EMPTY_DICT": {}, "EMPTY_LIST": []}[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "GLOBAL":
            if argument not in _MARKS:
                raise _Damaged(f"it wants to run {str(argument).replace(' ', '.')!r:.80}")
            stack.append(_Name(argument))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name in _STEPS:
            getattr(self, _STEPS[name])()
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(self._take(int(name[-1]))))
        elif name != "PROTO":
            raise _Damaged(f"it holds a {name.lower()}")

    def _take(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError("too few values")
        items = self._stack[-count:]
        del self._stack[-count:]
        return items

    def _take_marked(self) -> list[Any]:
        for index in range(len(self._stack) - 1, -1, -1):
            if self._stack[index] is _MARK:
                return self._take(len(self._stack) - index)[1:]
        raise IndexError("no mark")

    def _make_tuple(self) -> None:
        self._stack.append(tuple(self._take_marked()))

    def _call(self) -> None:
        function, arguments = self._take(2)
        if not isinstance(function, _Name):
            raise _Damaged("it calls what is no function")
        if function.name == _REBUILD:
            self._stack.append(self._tensor(arguments))
        elif function.name == "collections OrderedDict" and arguments == ():
            self._stack.append({})
        else:
            raise _Damaged(f"it calls {function.name.replace(' ', '.')!r:.80}")

    def _set_items(self) -> None:
        self._update(self._take_marked())

    def _set_item(self) -> None:
        self._update(self._take(2))

    def _update(self, items: list[Any]) -> None:
        if len(items) % 2 or not isinstance(self._stack[-1], dict):
            raise _Damaged("it sets keys of what is no dictionary")
        if not all(map(_is_key, items[::2])):
            raise _Damaged("a dictionary with keys other than text and small integers")
        self._stack[-1].update(zip(items[::2], items[1::2]))

    def _append_marked(self) -> None:
        self._extend(self._take_marked())

    def _append(self) -> None:
        self._extend(self._take(1))

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise _Damaged("it appends to what is no list")
        self._stack[-1].extend(items)

    def _leave_attributes(self) -> None:
        # The versions of the modules, which PyTorch keeps beside the tensors.
        self._take(1)

    def _keep_place(self) -> None:
        # The place of a storage, a tuple, stays what it is.
        if not isinstance(self._stack[-1], tuple):
            raise _Damaged("a storage without its place")


_STEPS = {
    "TUPLE": "_make_tuple",
    "REDUCE": "_call",
    "SETITEM": "_set_item",
    "SETITEMS": "_set_items",
    "APPEND": "_append",
    "APPENDS": "_append_marked",
    "BUILD": "_leave_attributes",
    "BINPERSID": "_keep_place",
}
