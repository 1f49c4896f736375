"""What the header of an encoded image says: its size, and how the camera was held.

Packing copies files and needs their size, which takes some microseconds where decoding, and Pillow,
take a hundred. Cameras store an image as the sensor sees it and note in an EXIF block how to turn
it. OpenCV turns what it decodes, but reads only the first EXIF segment of a JPEG and never that of
a WebP; Pillow makes 300 MB of a block of 64 kB if its directory asks for that. So the block is read
here.

An EXIF block is a TIFF file without images: byte order, the offset of a directory, and its entries
(JEITA CP-3451, Exif 2.3). It is a segment of a JPEG, a chunk of a PNG or of a WebP.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator
from typing import Optional

from data import MAX_PIXELS
from data.records.recordio import Payload

UPRIGHT = 1
"""The orientation of an image that is stored as it is to be seen."""

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_JPEG_END, _PNG_HEADER, _PNG_END = b"\xff\xd9", b"\0\0\0\rIHDR", b"IEND"
# The segments that begin a frame are C0 to CF, but for these three (ITU-T T.81, table B.1).
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# The start of the pixels, and the end of the image: no EXIF block comes after them.
_LAST_MARKERS = (0xDA, 0xD9)
_EXIF_MARKER, _EXIF_BEGIN = 0xE1, b"Exif\0\0"
# In a PNG and in a WebP; some tools write the beginning that only a JPEG's segment has. So many
# bytes hardly come by chance among the pixels.
_EXIF_CHUNK = re.compile(rb"(?:eXIf|EXIF.{4})(?:Exif\0\0)?(II\*\0|MM\0\*)", re.DOTALL)
# The byte orders of a TIFF file by its beginning.
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATION_TAG, _SHORT = 0x0112, 3
_ENTRY_BYTES, _MAX_ENTRIES = 12, 1024


def is_copied(payload: bytes) -> bool:
    """Return True for an upright JPEG or PNG, which every reader takes as it is."""
    return payload.startswith((_PNG, _JPEG)) and orientation(payload) == UPRIGHT


def encoded_size(payload: bytes) -> Optional[tuple[int, int]]:
    """Return height and width of a JPEG or PNG, as stored.

    Only the header and the end are read, so that damage in between is not found.

    Returns:
        None for another format or an image that is too large, a header that is unusual or damaged,
        or a missing end: then the image has to be decoded.
    """
    height = width = 0
    if payload.startswith(_PNG + _PNG_HEADER):
        if payload.rfind(_PNG_END, 24) != -1:
            width, height = struct.unpack_from(">II", payload, 16)
    elif payload.startswith(_JPEG):
        # The size of the first frame; thumbnails lie within a segment of another kind.
        frames = (place for marker, *place in _segments(payload) if marker in _FRAME_MARKERS)
        start, stop = next(frames, (0, 0))
        if start + 5 <= min(stop, len(payload)) and payload.rfind(_JPEG_END, start) != -1:
            height, width = struct.unpack_from(">xHH", payload, start)
    return (height, width) if 0 < height * width <= MAX_PIXELS else None


def orientation(payload: Payload) -> int:
    """Return the orientation of an encoded image, 1 (upright) to 8; 1 where it has none."""
    content = memoryview(payload)
    begin = bytes(content[:12])
    if begin.startswith(_JPEG[:2]):
        blocks: Iterator[memoryview] = (
            content[start + len(_EXIF_BEGIN) : stop]
            for marker, start, stop in _segments(content)
            if marker == _EXIF_MARKER and content[start:stop][: len(_EXIF_BEGIN)] == _EXIF_BEGIN
        )
    elif begin.startswith(_PNG) or (begin[:4] == b"RIFF" and begin[8:] == b"WEBP"):
        blocks = (content[found.start(1) :] for found in _EXIF_CHUNK.finditer(content))
    else:
        return UPRIGHT
    return next(map(_block_orientation, blocks), UPRIGHT)


def _segments(jpeg: Payload) -> Iterator[tuple[int, int, int]]:
    """Yield marker, start and stop of the segments before the pixels, as far as they are a chain.

    The start is that of the content, after the length.
    """
    position = 2
    while position + 4 <= len(jpeg) and jpeg[position] == 0xFF:
        marker = jpeg[position + 1]
        if marker in _LAST_MARKERS:
            return
        if marker == 0xFF:
            # A fill byte before the marker.
            position += 1
            continue
        (length,) = struct.unpack_from(">H", jpeg, position + 2)
        yield marker, position + 4, position + 2 + length
        position += 2 + length


def _block_orientation(block: memoryview) -> int:
    """Return the orientation in an EXIF block, 1 if it has none or is damaged."""
    order = _BYTE_ORDERS.get(bytes(block[:4]))
    with contextlib.suppress(struct.error):
        (directory,) = struct.unpack_from(f"{order}4xI", block)
        (count,) = struct.unpack_from(f"{order}H", block, directory)
        for number in range(min(count, _MAX_ENTRIES)):
            place = directory + 2 + _ENTRY_BYTES * number
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH2x", block, place)
            if tag == _ORIENTATION_TAG:
                return value if kind == _SHORT and 1 <= value <= 8 else UPRIGHT
    return UPRIGHT
