"""MXNet's files of arrays (``.params``, ``.param``), read and written without MXNet.

MXNet's own reader does not check the numbers in the file: a length of 2^60 or a missing shape
crashes the process, and with it all ranks. Checkpoints come from third parties, so here each number
is compared with what is left of the file before it is used. Arrays are views of the mapped file;
nothing is copied, and nothing larger than the file is allocated.

The format, all little-endian: ``0x112, 0`` (two uint64), a uint64 count and as many arrays, a
uint64 count and as many names (uint64 length, bytes). An array is a magic number of its version,
its kind of storage (int32, 0 for dense; from version 2 on), its shape (int32 rank, int64 sizes;
uint32 in the oldest version, where the rank takes the place of the magic number), device type and
number (two int32), the type of its elements (int32), and the elements.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DataError
from runtime.files import open_regular

_FILE_MAGIC = 0x112
_V1, _V2, _V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
_DENSE, _CPU = 0, 1
_MAX_RANK, _MAX_NAME = 32, 1024
# By MXNet's numbers of its types (mshadow/base.h); bfloat16 (12) is in no checkpoint.
_DTYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "u1", 4: "<i4", 5: "i1", 6: "<i8", 7: "b1"}
_CODES = {name: code for code, name in _DTYPES.items()}


def read_parameters(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of a ``.params`` file by name, views of the mapped file.

    Raises:
        DataError: the file is missing, damaged, or has what no checkpoint has: arrays without
            names, of a sparse kind, or of one name.
    """
    if not os.path.isfile(path):
        raise DataError(f"{path} does not exist; give an epoch that has a .params file")
    names, arrays = read_arrays(path)
    if arrays and not names:
        raise DataError(f"{path} has arrays without names, which is no checkpoint; copy it again")
    return dict(zip(names, arrays))


def read_arrays(path: Path) -> tuple[list[str], list[NDArray[Any]]]:
    """Read the names in a file, as many as arrays or none, and the arrays, views of the file.

    Raises:
        DataError: the file cannot be read, or is damaged.
    """
    try:
        with open_regular(path) as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise DataError(f"{path} cannot be read ({reason}); copy it again") from None
    try:
        return _Reader(content).read()
    except (ValueError, struct.error) as error:
        raise DataError(f"{path} is no MXNet parameter file ({error}); copy it again") from None


def write_parameters(file: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays by name, with the bytes that MXNet 1.9 writes.

    MXNet's own writer does not notice a full disk.

    Raises:
        OSError: they cannot be written.
    """
    file.write(struct.pack("<QQQ", _FILE_MAGIC, 0, len(arrays)))
    for array in arrays.values():
        rank = array.ndim
        file.write(struct.pack(f"<Iii{rank}q", _V2, _DENSE, rank, *array.shape))
        file.write(struct.pack("<iii", _CPU, 0, _CODES[array.dtype.str.lstrip("|")]))
        file.write(np.ascontiguousarray(array).data)
    file.write(struct.pack("<Q", len(arrays)))
    for name in map(str.encode, arrays):
        file.write(struct.pack("<Q", len(name)) + name)


class _Reader:
    """Reads a file once, from its first byte to its last; ``ValueError`` or ``struct.error``."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._position = 0

    def read(self) -> tuple[list[str], list[NDArray[Any]]]:
        magic, _, count = self._numbers("QQQ")
        _require(magic == _FILE_MAGIC)
        # A count that is too large meets the end of the file.
        arrays = [self._array() for _ in range(count)]
        (count,) = self._numbers("Q")
        names = [str(self._bytes(*self._numbers("Q")), "utf-8") for _ in range(count)]
        _require(self._position == len(self._content) and len(names) in (0, len(arrays)))
        _require(len(set(names)) == len(names) and max(map(len, names), default=1) <= _MAX_NAME)
        return names, arrays

    def _array(self) -> NDArray[Any]:
        (magic,) = self._numbers("I")
        _require(magic not in (_V2, _V3) or self._numbers("i") == (_DENSE,))
        is_oldest = magic not in (_V1, _V2, _V3)
        rank = magic if is_oldest else self._numbers("i")[0]
        _require(0 < rank <= _MAX_RANK)
        shape = self._numbers(f"{rank}{'I' if is_oldest else 'q'}")
        _, _, code = self._numbers("iii")
        _require(min(shape) > 0 and code in _DTYPES)
        dtype = np.dtype(_DTYPES[code])
        return np.frombuffer(self._bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)

    def _numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack("<" + form, self._bytes(struct.calcsize("<" + form)))

    def _bytes(self, length: int) -> memoryview:
        start = self._position
        self._position += length
        _require(self._position <= len(self._content))
        return self._content[start : self._position]


def _require(is_right: bool) -> None:
    if not is_right:
        raise ValueError("it is damaged or cut off, or has what no checkpoint has")
