"""How large an encoded image is, without decoding it.

Packing copies images as they are and has to know no more than their size. That stands in the first
few hundred bytes; finding it there takes some microseconds where decoding takes a hundred.
"""

from __future__ import annotations

import struct

from data import MAX_PIXELS
from data.images.exif import UPRIGHT, orientation
from data.records.recordio import BrokenRecordError

_PNG_BEGIN, _PNG_END = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"IEND"
_JPEG_BEGIN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
# The segments that begin a frame are C0 to CF, but for these three (ITU-T T.81, table B.1).
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_FILL = 0xFF
_PNG_SIZE = struct.Struct(">II")
_FRAME_SIZE = struct.Struct(">HH")
_SEGMENT_LENGTH = struct.Struct(">H")


def is_copied(payload: bytes) -> bool:
    """Whether a file is of a format that goes into a set as it is: what every reader of sets takes.

    Those of other formats are encoded anew, and so are images that are not stored upright.
    """
    is_known = payload.startswith((_PNG_BEGIN[:8], _JPEG_BEGIN))
    return is_known and orientation(payload) == UPRIGHT


def encoded_size(payload: bytes) -> tuple[int, int] | None:
    """Return height and width of a JPEG or PNG, as stored.

    What is looked at are the first and the last bytes, so that damage in between stays unseen.

    Returns:
        None for an image of another format, or of a form that is not what one expects (such as one
        without its end): then it is the decoder's word that counts.

    Raises:
        BrokenRecordError: the image is larger than any that is decoded.
    """
    size = None
    if payload.startswith(_PNG_BEGIN):
        size = _png_size(payload)
    elif payload.startswith(_JPEG_BEGIN):
        size = _jpeg_size(payload)
    if size is None or 0 in size:
        return None
    height, width = size
    if height * width > MAX_PIXELS:
        raise BrokenRecordError(
            f"the image has {height} x {width} pixels, more than the {MAX_PIXELS:,} that are "
            "decoded"
        )
    return size


def _png_size(payload: bytes) -> tuple[int, int] | None:
    if payload.rfind(_PNG_END, len(_PNG_BEGIN)) < 0:
        return None
    width, height = _PNG_SIZE.unpack_from(payload, len(_PNG_BEGIN))
    return height, width


def _jpeg_size(payload: bytes) -> tuple[int, int] | None:
    """Go from segment to segment up to the frame; None if the chain breaks or the end is missing.

    A thumbnail is an image within a segment, and so passed over.
    """
    position = 2
    while position + 9 <= len(payload) and payload[position] == _FILL:
        marker = payload[position + 1]
        if marker in _FRAME_MARKERS:
            if payload.rfind(_JPEG_END, position) < 0:
                return None
            height, width = _FRAME_SIZE.unpack_from(payload, position + 5)
            return height, width
        if marker == _FILL:
            position += 1
        else:
            position += 2 + _SEGMENT_LENGTH.unpack_from(payload, position + 2)[0]
    return None
