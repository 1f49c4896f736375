"""Many JPEGs decoded in one call, without Python's lock.

A face of 112 x 112 is decoded in 35 us, so that two threads that take the lock for each image wait
for each other, or for the processor to wake one of them up, for a tenth of their time. Therefore
compiled code calls libjpeg-turbo itself: the shared library that Pillow brings along, through the
interface of libjpeg 6b (Independent JPEG Group, libjpeg.txt and jpeglib.h, 1998). The pixels are
those that OpenCV makes, which has the same decoder within it.

libjpeg reports what it cannot decode by calling a function that must not return; C programs leave
it by ``longjmp``, and so does this one. Between the mark and the jump stand only libjpeg and
``_decode``, which own nothing but what ``jpeg_abort_decompress`` gives back.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data import MAX_SCANS
from runtime.kernels.compiled import add_symbol, cgutils, extending, ir, types, unlocked_kernel
from runtime.kernels.memory import array_at

_log = logging.getLogger("data")
_looking = threading.Lock()

# Of jpeglib.h, on systems whose pointers have 64 bits: JPEG_LIB_VERSION and the size of
# jpeg_decompress_struct, which libjpeg compares with its own before it writes anything.
_VERSION, _DECODER_BYTES = 62, 632
# The places of image_width, image_height and out_color_space in it, in words of 4 bytes; its first
# word of 8 bytes is the address of jpeg_error_mgr, and that begins with those of two functions.
_WIDTH, _HEIGHT, _COLORS, _FIELDS = 12, 13, 16, 17
# In bytes, the first of its 12 pointers to tables: quantization, and Huffman's of DC and of AC.
_TABLES, _TABLE_COUNT = 200, 12
_RGB = 2
# In words of 8 bytes: jpeg_error_mgr, of which there are 21, then the jmp_buf of setjmp.h, 25 on
# x86-64 and 39 on aarch64, then the decoder.
_MARK, _DECODER, _WORDS = 32, 96, 192

_FUNCTIONS = {
    "jpeg_std_error": types.uint64(types.uint64),
    "jpeg_CreateDecompress": types.void(types.uint64, types.int32, types.uint64),
    "jpeg_mem_src": types.void(types.uint64, types.uint64, types.uint64),
    "jpeg_read_header": types.int32(types.uint64, types.int32),
    "jpeg_start_decompress": types.int32(types.uint64),
    "jpeg_read_scanlines": types.uint32(types.uint64, types.uint64, types.uint32),
    "jpeg_finish_decompress": types.int32(types.uint64),
    "jpeg_abort_decompress": types.void(types.uint64),
    "jpeg_destroy_decompress": types.void(types.uint64),
}
_std_error, _create, _read_from, _read_header, _start, _read_rows, _finish, _abort, _destroy = (
    types.ExternalFunction(name, signature) for name, signature in _FUNCTIONS.items()
)

_INT, _WORD = ir.IntType(32), ir.IntType(64)


@extending.intrinsic
def _set_mark(context: Any, mark: Any) -> Any:
    """The ``setjmp`` of C: 0, and 1 when something has jumped to the mark."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        form = ir.FunctionType(_INT, [_WORD])
        function = cgutils.get_or_insert_function(builder.module, form, "_setjmp")
        # So the compiler keeps what the caller needs in memory, and the caller a function.
        function.attributes.add("returns_twice")
        return builder.call(function, arguments)

    return types.int32(types.uint64), generate


def _handler(name: str, only_below_zero: bool) -> Any:
    """Of kernels: the address of a function that libjpeg calls with a decoder and a level.

    It jumps to the mark, which lies behind the jpeg_error_mgr of the decoder.
    """

    @extending.intrinsic
    def address(context: Any) -> Any:
        def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            module = builder.module
            function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_WORD, _INT]), name)
            function.linkage = "internal"
            decoder, level = function.args
            body = ir.IRBuilder(function.append_basic_block())
            form = ir.FunctionType(ir.VoidType(), [_WORD, _INT])
            jump = cgutils.get_or_insert_function(module, form, "_longjmp")
            if only_below_zero:
                with body.if_then(body.icmp_signed("<", level, _INT(0))):
                    _jump(body, jump, decoder)
            else:
                _jump(body, jump, decoder)
            body.ret_void()
            return builder.ptrtoint(function, _WORD)

        return types.uint64(), generate

    return address


def _jump(body: Any, jump: Any, decoder: Any) -> None:
    manager = body.load(body.inttoptr(decoder, _WORD.as_pointer()))
    body.call(jump, [body.add(manager, _WORD(8 * _MARK)), _INT(1)])


# What libjpeg cannot go on from; and its messages, which are warnings of damage if below zero.
_on_error, _on_message = _handler("on_error", False), _handler("on_message", True)


def decode_jpegs(
    addresses: NDArray[np.uint64], sizes: NDArray[np.int64], images: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """Decode JPEGs into images of their size, as they are stored, without Python's lock.

    Args:
        addresses: uint64 ``[n]``, where in memory each begins.
        sizes: int64 ``[n]``, how many bytes it has; 0 is what is not to be decoded here.
        images: uint8 ``[at least n, height, width, 3]``, contiguous; receive RGB.

    Returns:
        int64, the places of those that have not been decoded: of size 0, what is no JPEG, is
        damaged, or has another size or colors that are neither YCbCr nor RGB nor gray; all of them,
        after a warning, without the library. Their images may hold anything.
    """
    assert len(addresses) == len(sizes) <= len(images) and images.flags.c_contiguous
    if not _has_library():
        return np.arange(len(sizes))
    # Of the caller: Numba frees its own arrays as soon as nothing but their addresses is used.
    memory = np.zeros(_WORDS + images.shape[1], np.uint64)
    return _decode_all(addresses, sizes, images, memory)  # type: ignore[no-any-return]


def _has_library() -> bool:
    # The first batch has several threads.
    with _looking:
        return _find_library()


@functools.lru_cache(maxsize=None)
def _find_library() -> bool:
    """Let compiled code call the libjpeg of Pillow's wheel, if it is there and fits."""
    try:
        library = _load(_library_file())
        for name in _FUNCTIONS:
            add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
        if not _fits(np.zeros(_WORDS, np.uint64)):
            raise OSError(f"its interface is another one than that of version {_VERSION}")
    except (OSError, AttributeError) as error:
        _log.warning(
            "the libjpeg of Pillow's wheel cannot be used (%s), so images are decoded one by one, "
            "more slowly; install what requirements.txt names: bash setup-utils/install.sh",
            error,
        )
        return False
    return True


def _library_file() -> Path:
    try:
        files = metadata.files("pillow") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name.startswith("libjpeg-"):
            return Path(str(file.locate()))
    raise OSError("there is none")


def _load(file: Path) -> ctypes.CDLL:
    """Load a copy of a library that calls its own functions, whatever else the process has loaded.

    MXNet exports an older libjpeg, and Horovod has MXNet's functions called wherever one of the
    same name is called. What has been loaded already would stay as it is; therefore a copy.
    """
    # It stays open: the system takes libraries of one path for the same.
    copy = os.memfd_create(file.name)
    with open(copy, "wb", closefd=False) as written:
        written.write(file.read_bytes())
    return ctypes.CDLL(f"/proc/self/fd/{copy}", os.RTLD_NOW | os.RTLD_DEEPBIND)


@unlocked_kernel
def _fits(memory: NDArray[np.uint64]) -> bool:
    """Whether libjpeg has the interface that is used here; uint64 ``[_WORDS]``, zeros."""
    state = np.uint64(memory.ctypes.data)
    made: bool = _make(state)
    _destroy(_decoder_of(state))
    return made


@unlocked_kernel
def _decode_all(
    addresses: NDArray[np.uint64],
    sizes: NDArray[np.int64],
    images: NDArray[np.uint8],
    memory: NDArray[np.uint64],
) -> NDArray[np.int64]:
    """Do what ``decode_jpegs`` does; ``memory`` is uint64 ``[_WORDS + height]``, zeros."""
    height, width = images.shape[1], images.shape[2]
    rows = memory[_WORDS:]
    state, rows_at = np.uint64(memory.ctypes.data), np.uint64(rows.ctypes.data)
    failed = np.empty(len(sizes), np.int64)
    count = 0
    made = _make(state)
    for i in range(len(sizes)):
        for row in range(height):
            rows[row] = images[i, row].ctypes.data
        size = np.uint64(sizes[i])
        is_usual = made and _has_few_scans(addresses[i], sizes[i])
        if not (is_usual and _is_decoded(state, addresses[i], size, rows_at, height, width)):
            _abort(_decoder_of(state))
            failed[count] = i
            count += 1
    _destroy(_decoder_of(state))
    return failed[:count]


@unlocked_kernel
def _has_few_scans(address: np.uint64, size: int) -> bool:
    """Return True if it occurs seldom that a scan may begin, as ``data.decoding`` counts it."""
    content = array_at(address, size, np.uint8)
    count = 0
    for place in range(size - 1):
        count += (content[place] == 0xFF) & (content[place + 1] == 0xDA)
    return count <= MAX_SCANS


@unlocked_kernel
def _mark_of(state: np.uint64) -> np.uint64:
    return state + np.uint64(8 * _MARK)


@unlocked_kernel
def _decoder_of(state: np.uint64) -> np.uint64:
    return state + np.uint64(8 * _DECODER)


@unlocked_kernel
def _make(state: np.uint64) -> bool:
    """Make a decoder; it may be destroyed in any case."""
    words = array_at(state, _WORDS, np.uint64)
    words[_DECODER] = _std_error(state)
    words[0], words[1] = _on_error(), _on_message()
    if _set_mark(_mark_of(state)):
        return False
    _create(_decoder_of(state), np.int32(_VERSION), np.uint64(_DECODER_BYTES))
    return True


@unlocked_kernel
def _is_decoded(
    state: np.uint64, address: np.uint64, size: np.uint64, rows: np.uint64, height: int, width: int
) -> bool:
    """Decode one JPEG; libjpeg jumps back to here from what it cannot decode.

    An array of Numba would be counted here and below, and after a jump never be freed; so they are
    passed by their addresses.
    """
    if _set_mark(_mark_of(state)):
        return False
    return _decode(_decoder_of(state), address, size, rows, height, width)  # type: ignore[no-any-return]


@unlocked_kernel
def _decode(
    decoder: np.uint64,
    address: np.uint64,
    size: np.uint64,
    rows: np.uint64,
    height: int,
    width: int,
) -> bool:
    fields = array_at(decoder, _FIELDS, np.uint32)
    tables = array_at(decoder + np.uint64(_TABLES), _TABLE_COUNT, np.uint64)
    for i in range(_TABLE_COUNT):
        # Otherwise what an image lacks would be taken from the one before it.
        tables[i] = 0
    _read_from(decoder, address, size)
    _read_header(decoder, np.int32(1))
    if fields[_WIDTH] != width or fields[_HEIGHT] != height:
        return False
    fields[_COLORS] = _RGB
    _start(decoder)
    done = np.uint32(0)
    while done < height:
        done += _read_rows(decoder, rows + np.uint64(8 * done), np.uint32(height - done))
    _finish(decoder)
    return True
