"""How a camera was held: the orientation in an image file's EXIF block, and turning it upright.

Phones store an image as the sensor sees it and note how to turn it. OpenCV turns what it decodes,
but only by a note that a JPEG has before other blocks of its kind, and never a WebP; and packing
copies files without decoding them. So the note is looked for here.

The block is a TIFF file without images: byte order, the place of a directory, and its entries
(JEITA CP-3451, Exif 2.3). It is a segment of a JPEG, a chunk of a PNG or of a WebP.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from data.records.recordio import Payload

UPRIGHT = 1

_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATION_TAG, _SHORT = 0x0112, 3
_MOST_ENTRIES = 1024

_JPEG_BEGIN, _PNG_BEGIN = b"\xff\xd8", b"\x89PNG\r\n\x1a\n"
_EXIF_MARKER, _EXIF_BEGIN = 0xE1, b"Exif\0\0"
# The start of the pixels, and the end: no segment behind them is a note.
_LAST_MARKERS = (0xDA, 0xD9)
_FILL = 0xFF


def orientation(payload: Payload) -> int:
    """Return the orientation of an encoded image, 1 (upright) to 8; 1 where it has none."""
    content = memoryview(payload)
    begin = bytes(content[:12])
    if begin.startswith(_JPEG_BEGIN):
        blocks = _of_jpeg(content)
    elif begin.startswith(_PNG_BEGIN):
        blocks = _chunks(content, 8, ">I4s", b"eXIf")
    elif begin[:4] == b"RIFF" and begin[8:] == b"WEBP":
        blocks = _chunks(content, 12, "<4sI", b"EXIF")
    else:
        return UPRIGHT
    return next(map(_in_block, blocks), UPRIGHT)


def turn_upright(image: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return an image as its orientation says that it is to be seen.

    Args:
        image: uint8 ``[height, width, channels]``, as stored.
        orientation: 1 to 8; from 5 on, height and width change places.
    """
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return np.ascontiguousarray(image)


def _of_jpeg(content: memoryview) -> Iterator[memoryview]:
    """Yield the EXIF blocks among the segments before the pixels."""
    position = 2
    while position + 4 <= len(content) and content[position] == _FILL:
        marker = content[position + 1]
        if marker == _FILL:
            position += 1
            continue
        if marker in _LAST_MARKERS:
            return
        (length,) = struct.unpack_from(">H", content, position + 2)
        segment = content[position + 4 : position + 2 + length]
        if marker == _EXIF_MARKER and segment[: len(_EXIF_BEGIN)] == _EXIF_BEGIN:
            yield segment[len(_EXIF_BEGIN) :]
        position += 2 + length


def _chunks(content: memoryview, position: int, form: str, wanted: bytes) -> Iterator[memoryview]:
    """Yield the chunks of a kind, each of a head of kind and length in either order, and bytes."""
    head = struct.Struct(form)
    # A PNG has a checksum behind each chunk; a WebP fills up to an even length.
    is_png = form[0] == ">"
    while position + head.size <= len(content):
        words = head.unpack_from(content, position)
        length, kind = words if is_png else reversed(words)
        position += head.size
        if kind == wanted:
            block = content[position : position + length]
            # Some tools write the beginning that only a JPEG's segment has.
            yield block[len(_EXIF_BEGIN) :] if block[: len(_EXIF_BEGIN)] == _EXIF_BEGIN else block
        position += length + (4 if is_png else length % 2)


def _in_block(block: memoryview) -> int:
    """Return the orientation that a block gives, 1 if it gives none or is damaged."""
    order = _BYTE_ORDERS.get(bytes(block[:4]))
    if order is None or len(block) < 8:
        return UPRIGHT
    (position,) = struct.unpack_from(f"{order}I", block, 4)
    if position + 2 > len(block):
        return UPRIGHT
    (count,) = struct.unpack_from(f"{order}H", block, position)
    entry = struct.Struct(f"{order}HHIH")
    for number in range(min(count, _MOST_ENTRIES)):
        place = position + 2 + 12 * number
        if place + 12 > len(block):
            break
        tag, kind, _, value = entry.unpack_from(block, place)
        if tag == _ORIENTATION_TAG:
            return value if kind == _SHORT and 1 <= value <= 8 else UPRIGHT
    return UPRIGHT
