"""What the header of an encoded image says: its size, and how the camera was held.

Packing copies files without decoding them and needs their size; the header has it in the first few
hundred bytes, which takes some microseconds where decoding takes a hundred. Cameras store an image
as the sensor sees it and note in an EXIF block how to turn it. OpenCV turns what it decodes, but
reads only the first EXIF segment of a JPEG and never that of a WebP; so the block is read here.

An EXIF block is a TIFF file without images: byte order, the offset of a directory, and its entries
(JEITA CP-3451, Exif 2.3). It is a segment of a JPEG, a chunk of a PNG or of a WebP.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Optional

from data import MAX_PIXELS
from data.records.recordio import BrokenRecordError, Payload

UPRIGHT = 1
"""The orientation of an image that is stored as it is to be seen."""

_JPEG_BEGIN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_PNG_MAGIC, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND"
_PNG_BEGIN = _PNG_MAGIC + b"\0\0\0\rIHDR"
_SEGMENT_BEGIN = 0xFF
# Bytes before the first segment, of marker and length, and of the length, which counts itself.
_SEGMENTS_BEGIN, _SEGMENT_HEAD, _LENGTH_BYTES = 2, 4, 2
# The segments that begin a frame are C0 to CF, but for these three (ITU-T T.81, table B.1).
FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# The start of the pixels, and the end of the image: no EXIF block comes after them.
_LAST_MARKERS = (0xDA, 0xD9)
_EXIF_MARKER, _EXIF_BEGIN = 0xE1, b"Exif\0\0"

_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATION_TAG, _SHORT = 0x0112, 3
_ENTRY_BYTES, _MAX_ENTRIES = 12, 1024


def is_copied(payload: bytes) -> bool:
    """Whether a file goes into a set as it is: an upright JPEG or PNG, which every reader takes."""
    return payload.startswith((_PNG_MAGIC, _JPEG_BEGIN)) and orientation(payload) == UPRIGHT


def encoded_size(payload: bytes) -> Optional[tuple[int, int]]:
    """Return height and width of a JPEG or PNG, as stored.

    Only the header and the end are read, so that damage in between is not found.

    Returns:
        None for another format, or a header that is unusual or damaged, or a missing end: then the
        image has to be decoded.

    Raises:
        BrokenRecordError: the image is larger than any that is decoded.
    """
    height = width = 0
    if payload.startswith(_PNG_BEGIN):
        first = len(_PNG_BEGIN)
        if payload.rfind(_PNG_END, first + 8) > 0:
            width, height = struct.unpack_from(">II", payload, first)
    elif payload.startswith(_JPEG_BEGIN):
        height, width = _jpeg_size(payload)
    if height * width > MAX_PIXELS:
        raise BrokenRecordError(
            f"the image has {height} x {width} pixels, more than the {MAX_PIXELS:,} that are "
            "decoded"
        )
    return (height, width) if height * width else None


def orientation(payload: Payload) -> int:
    """Return the orientation of an encoded image, 1 (upright) to 8; 1 where it has none."""
    content = memoryview(payload)
    begin = bytes(content[:12])
    if begin.startswith(_JPEG_BEGIN[:2]):
        blocks = _exif_segments(content)
    elif begin.startswith(_PNG_MAGIC):
        blocks = _chunks(content, 8, ">I4s", b"eXIf")
    elif begin[:4] == b"RIFF" and begin[8:] == b"WEBP":
        blocks = _chunks(content, 12, "<4sI", b"EXIF")
    else:
        return UPRIGHT
    return next(map(_block_orientation, blocks), UPRIGHT)


def _jpeg_size(payload: bytes) -> tuple[int, int]:
    """Return the size in the first frame, 0 x 0 without one; thumbnails lie within a segment."""
    for marker, position, _ in _segments(payload):
        if marker in FRAME_MARKERS:
            if position + 9 > len(payload) or payload.rfind(_JPEG_END, position) < 0:
                break
            height, width = struct.unpack_from(">HH", payload, position + 5)
            return height, width
    return 0, 0


def _segments(jpeg: Payload) -> Iterator[tuple[int, int, int]]:
    """Yield marker, position and length of each segment, as far as one follows another."""
    position = 2
    while position + 4 <= len(jpeg) and jpeg[position] == _SEGMENT_BEGIN:
        marker = jpeg[position + 1]
        if marker == _SEGMENT_BEGIN:
            # A fill byte before the marker.
            position += 1
            continue
        (length,) = struct.unpack_from(">H", jpeg, position + 2)
        yield marker, position, length
        position += 2 + length


def _exif_segments(content: memoryview) -> Iterator[memoryview]:
    """Yield the EXIF blocks among the segments before the pixels."""
    for marker, position, length in _segments(content):
        if marker in _LAST_MARKERS:
            return
        segment = content[position + 4 : position + 2 + length]
        if marker == _EXIF_MARKER and segment[: len(_EXIF_BEGIN)] == _EXIF_BEGIN:
            yield segment[len(_EXIF_BEGIN) :]


def _chunks(content: memoryview, position: int, form: str, wanted: bytes) -> Iterator[memoryview]:
    """Yield the chunks of a kind; each begins with kind and length, in either order."""
    head = struct.Struct(form)
    # In a PNG a checksum follows each chunk; in a WebP a byte fills an odd length up.
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


def _block_orientation(block: memoryview) -> int:
    """Return the orientation in an EXIF block, 1 if it has none or is damaged."""
    order = _BYTE_ORDERS.get(bytes(block[:4]))
    if order is None or len(block) < 8:
        return UPRIGHT
    (directory,) = struct.unpack_from(f"{order}I", block, 4)
    if directory + 2 > len(block):
        return UPRIGHT
    (count,) = struct.unpack_from(f"{order}H", block, directory)
    for number in range(min(count, _MAX_ENTRIES)):
        position = directory + 2 + _ENTRY_BYTES * number
        if position + _ENTRY_BYTES > len(block):
            break
        tag, kind, _, value = struct.unpack_from(f"{order}HHIH", block, position)
        if tag == _ORIENTATION_TAG:
            return value if kind == _SHORT and 1 <= value <= 8 else UPRIGHT
    return UPRIGHT
