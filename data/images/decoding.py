"""Decoding: the one place where encoded bytes become pixels, and pixels what networks take.

MXNet's networks want RGB while OpenCV decodes to BGR unless told otherwise, and OpenCV answers
broken images sometimes with None and sometimes with an exception of its own. Everybody who needs
pixels asks here.

There are two ways. Records come from strangers: of them, four formats are decoded. A folder of
files is one's own: of them, everything that OpenCV makes 8-bit pixels of. Images come upright
either way, as their EXIF block says; MXNet's readers of records turn a JPEG as well.
"""

from __future__ import annotations

import os
import struct

import cv2
import numpy as np
from numpy.typing import NDArray

from data.images import exif
from data.records.recordio import BrokenRecordError, Payload

Image = NDArray[np.uint8]

# Read when OpenCV first needs it. Its wider instructions gain nothing on images of this size, but
# lower the clock of some processors, and with it the speed of decoding, by a tenth.
os.environ.setdefault("OPENCV_IPP", "sse42")

FILE_ENDINGS = (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".dib", ".webp", ".tif", ".tiff") + (
    ".pgm", ".ppm", ".pbm", ".pnm", ".ras", ".sr", ".hdr", ".pic"
)  # fmt: skip
"""The endings of image files, in small letters.

Not those that hold light instead of 8-bit pixels (.pfm, .exr), nor what OpenCV is built without
(.gif, .avif); nor .pam, whose red and blue it exchanges, and .jp2, of which damaged files end the
process.
"""

# JPEG, PNG, BMP, WebP. OpenCV knows a dozen formats more, which no set has, and each is another
# decoder to be attacked.
_BEGINNINGS_OF_RECORDS = (b"\xff\xd8", b"\x89P", b"BM", b"RI")
# TIFF, portable maps, Sun raster, Radiance.
_BEGINNINGS_OF_FILES = (
    *_BEGINNINGS_OF_RECORDS, b"II", b"MM", *(b"P%d" % kind for kind in range(1, 7)),
    b"\x59\xa6", b"#?",
)  # fmt: skip

_CHUNK = struct.Struct(">I4s")

_AS_SEEN = cv2.IMREAD_COLOR_RGB
_AS_STORED = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION


def decode_rgb(payload: Payload) -> Image:
    """Decode an image of a record: a JPEG or PNG, BMP or WebP.

    Returns:
        uint8 ``[height, width, 3]``, RGB, upright.

    Raises:
        BrokenRecordError: the bytes are no image.
    """
    if bytes(payload[:2]) not in _BEGINNINGS_OF_RECORDS:
        raise BrokenRecordError("the image cannot be decoded: it is no JPEG, PNG, BMP or WebP")
    return _decode(payload, _AS_SEEN)


def decode_file(payload: Payload) -> Image:
    """Decode an image file of one's own, of any format in ``FILE_ENDINGS``.

    Returns:
        uint8 ``[height, width, 3]``, RGB, upright.

    Raises:
        BrokenRecordError: the bytes are no image.
    """
    if bytes(payload[:2]) not in _BEGINNINGS_OF_FILES:
        raise BrokenRecordError("the image cannot be decoded: it is of no format that is known")
    return exif.turn_upright(_decode(payload, _AS_STORED), exif.orientation(payload))


def _decode(payload: Payload, flags: int) -> Image:
    if bytes(payload[:2]) == b"\x89P" and not _has_whole_chunks(payload):
        raise BrokenRecordError("the image cannot be decoded: it is cut off or damaged")
    image = _decode_any(np.frombuffer(payload, np.uint8), flags)
    if image is None:
        raise BrokenRecordError(
            "the image cannot be decoded: it is damaged, or of a kind or size that OpenCV refuses"
        )
    return image


def decode_jpeg(payload: NDArray[np.uint8]) -> Image | None:
    """Decode what begins like a JPEG, the shortest way; None if it cannot be decoded."""
    return _decode_any(payload, _AS_SEEN)


def _decode_any(payload: NDArray[np.uint8], flags: int) -> Image | None:
    try:
        image: Image | None = cv2.imdecode(payload, flags)
    except cv2.error:
        return None
    return image


def _has_whole_chunks(payload: Payload) -> bool:
    """Whether a PNG's chunks lie within it; OpenCV makes memory of what their lengths say."""
    position = 8
    while position + _CHUNK.size <= len(payload):
        position += 12 + _CHUNK.unpack_from(payload, position)[0]
    return position <= len(payload)
