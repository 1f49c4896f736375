"""Decoding and encoding of images, one by one, by OpenCV.

The plain JPEGs of a training set are decoded many at once, by ``data.libjpeg``, to the same pixels.

MXNet's networks take RGB while OpenCV decodes to BGR by default, and OpenCV answers broken images
sometimes with None and sometimes with an exception of its own.

Record files come from strangers: of their images, four formats are decoded. A folder of image files
is the user's own: of these, every format that OpenCV decodes to 8-bit pixels. Either way images are
turned upright, as their EXIF block says; MXNet's readers of records turn a JPEG as well.
"""

from __future__ import annotations

import os
import re
import struct
from enum import Enum, auto
from typing import Optional

import cv2
import numpy as np
from numpy.typing import NDArray

from data import MAX_PIXELS, MAX_SCANS, headers
from data.records.recordio import BrokenRecordError, Payload

Image = NDArray[np.uint8]

FILE_ENDINGS = (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".dib", ".webp", ".tif", ".tiff") + (
    ".pgm", ".ppm", ".pbm", ".pnm", ".ras", ".sr", ".hdr", ".pic"
)  # fmt: skip
"""The endings of image files, in lower case.

Without those that hold light instead of 8-bit pixels (.pfm, .exr), those that OpenCV is built
without (.gif, .avif), .pam, whose red and blue it exchanges, and .jp2, of which damaged files end
the process.
"""
IMAGE_ENDINGS = (*FILE_ENDINGS, ".jfif", ".jif", ".jfi")
"""With those under which browsers save JPEGs."""

# JPEG, PNG, BMP, WebP. OpenCV knows a dozen more formats, which no set has; each is another decoder
# to be attacked.
_BEGINNINGS_OF_RECORDS = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"BM": ".bmp", b"RI": ".webp"}
# TIFF, portable maps, Sun raster, Radiance.
_BEGINNINGS_OF_FILES = (
    *_BEGINNINGS_OF_RECORDS, b"II", b"MM", *(b"P%d" % kind for kind in range(1, 7)),
    b"\x59\xa6", b"#?",
)  # fmt: skip

# Formats that are not decoded: animations, HEIC of telephones, HDR, drawings, and raw files of
# cameras, which start like a TIFF.
_OTHER_ENDINGS = (".gif", ".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".pfm", ".pam") + (
    ".exr", ".dng", ".nef", ".cr2", ".cr3", ".arw", ".orf", ".rw2", ".psd", ".svg", ".ico"
)  # fmt: skip
_OTHER_BEGINNINGS = re.compile(rb"GIF8|.{4}ftyp|.{4}jP  |P7\n|\xff\x0a|8BPS|v/1\x01", re.DOTALL)
# JPEG, PNG, BMP, WebP; and TIFF, portable maps in bytes, Sun raster, Radiance.
_USUAL_BEGINNINGS = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|BM.{4}\0{4}|RIFF.{4}WEBP", re.DOTALL
)
_RARE_BEGINNINGS = re.compile(rb"II\*\0|MM\0\*|P[456]\s+[#\d]|\x59\xa6\x6a\x95|#\?RAD")
BEGINNING_BYTES = 16
"""Number of bytes of a file that ``kind_of`` needs."""

JPEG_QUALITY = 95
"""Of images that are encoded: hardly a visible loss, and a third of the bytes of quality 100."""

_CHUNK = struct.Struct(">I4s")
_JPEG = b"\xff\xd8"
_SCAN, _SCAN_MARKER, _END_MARKER = b"\xff\xda", 0xDA, 0xD9
# A hundred of 67 million pixels would take 11 s.
_SCANS_OF_LARGEST = 32
# Before a length. In the pixels, zeros and restarts (D0 to D7) follow 0xFF (ITU-T T.81, B.1.1.3).
_MARKER = re.compile(rb"\xff+[\xc0-\xcf\xd9-\xfe]")


class FileKind(Enum):
    """Kind of a file: an image that is decoded, an image of another format, or not an image."""

    IMAGE = auto()
    OTHER = auto()
    NONE = auto()


_UPRIGHT = cv2.IMREAD_COLOR_RGB
_AS_STORED = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION


def decode_rgb(payload: Payload) -> Image:
    """Decode a JPEG, PNG, BMP or WebP of a record: uint8 ``[height, width, 3]``, RGB, upright.

    Raises:
        BrokenRecordError: the bytes are no image.
    """
    ending_of(payload)
    return _decode(payload, _UPRIGHT)


def ending_of(payload: Payload) -> str:
    """Return the ending that the file of a record's image has, such as ".jpg".

    Raises:
        BrokenRecordError: the bytes are no image.
    """
    ending = _BEGINNINGS_OF_RECORDS.get(bytes(payload[:2]))
    if ending is None:
        raise BrokenRecordError("the image cannot be decoded: it is no JPEG, PNG, BMP or WebP")
    return ending


def decode_file(payload: Payload) -> Image:
    """Decode a file of any format in ``FILE_ENDINGS``: uint8 ``[height, width, 3]``, RGB, upright.

    Raises:
        BrokenRecordError: the bytes are no image.
    """
    if bytes(payload[:2]) not in _BEGINNINGS_OF_FILES:
        raise BrokenRecordError("the image cannot be decoded: it is of no format that is known")
    return turn_upright(_decode(payload, _AS_STORED), headers.orientation(payload))


def kind_of(name: str, beginning: bytes) -> FileKind:
    """Return what a file is, by its name and, if its ending says nothing, its first bytes."""
    ending = os.path.splitext(name.lower())[1]
    if ending in IMAGE_ENDINGS:
        return FileKind.IMAGE
    is_other = ending in _OTHER_ENDINGS
    if _USUAL_BEGINNINGS.match(beginning):
        return FileKind.IMAGE
    if _RARE_BEGINNINGS.match(beginning) and not is_other:
        return FileKind.IMAGE
    return FileKind.OTHER if is_other or _OTHER_BEGINNINGS.match(beginning) else FileKind.NONE


def encode(image: Image, lossless: bool) -> bytes:
    """Encode uint8 ``[height, width, 3]``, RGB, as a PNG if ``lossless``, otherwise as a JPEG."""
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    options = [] if lossless else [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    done, encoded = cv2.imencode(".png" if lossless else ".jpg", bgr, options)
    assert done
    payload: bytes = encoded.tobytes()
    return payload


def turn_upright(image: Image, orientation: int) -> Image:
    """Return an image as it is to be seen.

    Args:
        image: uint8 ``[height, width, channels]``, as stored.
        orientation: that of its EXIF block, 1 to 8; from 5 on, height and width are exchanged.
    """
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return np.ascontiguousarray(image)


def _decode(payload: Payload, flags: int) -> Image:
    if bytes(payload[:2]) == b"\x89P" and not _has_whole_chunks(payload):
        raise BrokenRecordError("the image cannot be decoded: it is cut off or damaged")
    if bytes(payload[:2]) == _JPEG and _has_many_scans(bytes(payload)):
        raise BrokenRecordError(
            "the image cannot be decoded: it is a JPEG of too many scans (at most "
            f"{MAX_SCANS}, and fewer of a large image)"
        )
    try:
        image: Optional[Image] = cv2.imdecode(np.frombuffer(payload, np.uint8), flags)
    except cv2.error:
        image = None
    if image is None:
        raise BrokenRecordError(
            "the image cannot be decoded: it is damaged, or of a kind or size that OpenCV refuses"
        )
    return image


def _has_whole_chunks(payload: Payload) -> bool:
    """Whether a PNG's chunks lie within it; OpenCV allocates the lengths that they announce."""
    position = 8
    while position + _CHUNK.size <= len(payload):
        position += 12 + _CHUNK.unpack_from(payload, position)[0]
    return position <= len(payload)


def _has_many_scans(jpeg: bytes) -> bool:
    if jpeg.count(_SCAN) <= _SCANS_OF_LARGEST:
        return False
    # The thumbnail in a segment, and a film after the end, are not decoded.
    place, scans, most = len(_JPEG), 0, MAX_SCANS
    while found := _MARKER.search(jpeg, place):
        place = found.end()
        if jpeg[place - 1] == _END_MARKER:
            break
        if jpeg[place - 1] in headers.FRAME_MARKERS:
            height, width = (
                int.from_bytes(jpeg[at : at + 2], "big") for at in (place + 3, place + 5)
            )
            most = min(most, _SCANS_OF_LARGEST * MAX_PIXELS // max(height * width, 1))
        scans += jpeg[place - 1] == _SCAN_MARKER
        if scans > most:
            return True
        place += int.from_bytes(jpeg[place : place + 2], "big")
    return False
