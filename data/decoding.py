"""Decoding, resizing and encoding of images by OpenCV, without Python's lock meanwhile.

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
import zlib
from pathlib import Path
from typing import Optional, Union

import cv2
import numpy as np
from numpy.typing import NDArray

from data import MAX_PIXELS, headers
from data.records.recordio import BrokenRecordError, Payload
from runtime.files import read_file

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
# JPEG, PNG, BMP, WebP, TIFF, portable maps, Sun raster, Radiance.
_BEGINNINGS_OF_FILES = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|BM.{13}\0{3}|RIFF.{4}WEBP|II[*+]\0|MM\0[*+]"
    rb"|P[1-6]\s+[#\d]|\x59\xa6\x6a\x95|#\?R", re.DOTALL
)  # fmt: skip

# Raw files of cameras start like a TIFF; OpenCV would decode their thumbnails.
_RAW_ENDINGS = (".dng", ".nef", ".cr2", ".cr3", ".arw", ".orf", ".rw2")
BEGINNING_BYTES = 18
"""Number of bytes of a file that ``is_image`` needs."""

# Hardly a visible loss, and a third of the bytes of quality 100.
_JPEG_QUALITY = 95

_PNG = b"\x89P"
_CHUNK = struct.Struct(">I4s")
# The header of a PNG has width, height, bits of a sample and kind of color; the kind says how many
# samples a pixel has (PNG specification, table 11.1). Some surplus bytes of pixels are let pass.
_PNG_HEADER, _SAMPLES = struct.Struct(">8s8xIIBB"), {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PNG_SLACK = 1 << 16
# Chunks of texts and profiles, which inflate to a thousand times as much and are not shown.
_PNG_EXTRAS = (b"zTXt", b"iTXt", b"iCCP")
# A portable map says how large a sample is at most (Netpbm). OpenCV looks at it only where samples
# are digits (P2, P3) and at most 255.
_MAP = re.compile(rb"P([2356])" + 3 * rb"(?:\s|#[^\r\n]*[\r\n])+(\d{1,9})" + rb"\s")
_USUAL_WHITE = (255, 65535)
# The header of a BMP has its own size, bits of a pixel and kind of compression. In the shortest one
# with 32 bits and masks, OpenCV ignores the masks of red, green and blue, which follow.
_BMP, _BMP_HEADER, _BMP_MASKS = b"BM", struct.Struct("<14xI10xHI"), struct.Struct("<54x3I")
_SHORT_WITH_MASKS, _USUAL_MASKS = (40, 32, 3), (0xFF0000, 0xFF00, 0xFF)
_JPEG = b"\xff\xd8"
_SCAN, _SCAN_MARKER, _END_MARKER = b"\xff\xda", 0xDA, 0xD9
# Each passes over all pixels, which takes 0.1 s of 67 million; encoders make ten or so.
_MAX_SCANS = 32
# Before a length. In the pixels, zeros and restarts (D0 to D7) follow 0xFF (ITU-T T.81, B.1.1.3).
# Fill bytes before it are not part of the match: n of them would take n^2 steps.
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")


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
        raise _broken("it is no JPEG, PNG, BMP or WebP")
    return ending


def decode_file(payload: Payload) -> Image:
    """Decode a file of any format in ``FILE_ENDINGS``: uint8 ``[height, width, 3]``, RGB, upright.

    Raises:
        BrokenRecordError: the bytes are no image.
    """
    if not _BEGINNINGS_OF_FILES.match(payload):
        raise _broken("it is of no format that is known")
    found = _MAP.match(payload)
    white = int(found[4]) if found else 0
    if not found or white in _USUAL_WHITE or (white <= _USUAL_WHITE[0] and found[1] in b"23"):
        return _turn_upright(_decode(payload, _AS_STORED), headers.orientation(payload))
    samples = _decode(payload, _AS_STORED | cv2.IMREAD_ANYDEPTH) * (255 / max(white, 1))
    image: Image = np.rint(np.minimum(samples, 255)).astype(np.uint8)
    return image


def read_image(path: Union[str, Path]) -> Image:
    """Read and decode a file; see ``decode_file``.

    Raises:
        BrokenRecordError: it cannot be read or decoded; the message begins with its path.
    """
    try:
        return decode_file(read_file(path))
    except OSError as error:
        raise BrokenRecordError(f"{path} cannot be read: {error.strerror}") from None
    except BrokenRecordError as error:
        raise BrokenRecordError(f"{path}: {error}") from None


def is_image(name: str, beginning: bytes) -> bool:
    """Return True for a file that is decoded, by its name and, if that says nothing, its bytes."""
    ending = os.path.splitext(name.lower())[1]
    begins_like_one = _BEGINNINGS_OF_FILES.match(beginning) is not None
    return ending in IMAGE_ENDINGS or (begins_like_one and ending not in _RAW_ENDINGS)


def encode(image: Image, lossless: bool, quality: int = _JPEG_QUALITY) -> bytes:
    """Encode uint8 ``[height, width, 3]``, RGB, as a PNG if ``lossless``, otherwise as a JPEG."""
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    options = [] if lossless else [cv2.IMWRITE_JPEG_QUALITY, quality]
    done, encoded = cv2.imencode(".png" if lossless else ".jpg", bgr, options)
    assert done
    payload: bytes = encoded.tobytes()
    return payload


def fit_to(image: Image, size: tuple[int, int], name: str) -> Image:
    """Bring an image to the size of its set, with bicubic interpolation.

    InsightFace's loader resizes the shorter side to that of the set in this way, and ends at an
    image whose longer side then differs.

    Args:
        image: uint8 ``[height, width, 3]``.
        size: height and width of the set.
        name: of the image, for messages.

    Raises:
        BrokenRecordError: the image has another shape.
    """
    (height, width), (new_height, new_width) = image.shape[:2], size
    if (height, width) == size:
        return image
    if not has_shape((height, width), size):
        raise BrokenRecordError(
            f"{name}: the image has {height} x {width} pixels, which is another shape than the "
            f"set's {new_height} x {new_width}"
        )
    resized: Image = cv2.resize(image, (new_width, new_height), interpolation=cv2.INTER_CUBIC)
    return resized


def has_shape(size: tuple[int, int], wanted: tuple[int, int]) -> bool:
    """Return True if both sides scale to the wanted ones, the longer one rounded down."""
    (height, width), (new_height, new_width) = size, wanted
    if height * new_width > width * new_height:
        return new_width * height // width == new_height
    return new_height * width // height == new_width


def _turn_upright(image: Image, orientation: int) -> Image:
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


def _broken(reason: str) -> BrokenRecordError:
    return BrokenRecordError(f"the image cannot be decoded: {reason}")


def _decode(payload: Payload, flags: int) -> Image:
    payload = bytes(payload)
    beginning = payload[:2]
    if beginning == _PNG:
        payload = _bounded_png(payload)
    if beginning == _BMP and _has_other_masks(payload):
        raise _broken("it is a BMP whose colors lie in an unusual order")
    if beginning == _JPEG and _has_many_scans(payload):
        raise _broken(f"it is a JPEG of more than {_MAX_SCANS} scans")
    try:
        image: Optional[Image] = cv2.imdecode(np.frombuffer(payload, np.uint8), flags)
    except cv2.error:
        image = None
    if image is None:
        raise _broken("it is damaged, or of a kind or size that OpenCV refuses")
    return image


def _bounded_png(png: bytes) -> bytes:
    """Return a PNG without texts and profiles, for which OpenCV would inflate what nobody sees.

    Raises:
        BrokenRecordError: a chunk is longer than the rest, for which OpenCV would take memory; or
            the pixels go on after the last row, which would take it time.
    """
    position, kept, pixels = 8, [png[:8]], []
    while position + _CHUNK.size <= len(png):
        size, kind = _CHUNK.unpack_from(png, position)
        end = position + 12 + size
        if kind == b"IDAT":
            pixels.append(png[position + 8 : end - 4])
        if kind not in _PNG_EXTRAS:
            kept.append(png[position:end])
        position = end
    if position > len(png):
        raise _broken("it is cut off or damaged")
    if len(png) > _PNG_HEADER.size and not _ends_with_rows(png, b"".join(pixels)):
        raise _broken("its pixels go on after its last row")
    return b"".join(kept)


def _ends_with_rows(png: bytes, pixels: bytes) -> bool:
    """Whether the data of a PNG, unpacked, has at most twice the bytes that its header promises."""
    _, width, height, bits, color = _PNG_HEADER.unpack_from(png)
    if height * width > MAX_PIXELS:
        # OpenCV refuses it by its header.
        return True
    left: int = 2 * height * (1 + width * bits * _SAMPLES.get(color, 4) // 8) + _PNG_SLACK
    stream = zlib.decompressobj()
    try:
        while pixels and left > 0:
            left -= len(stream.decompress(pixels, _PNG_SLACK))
            pixels = stream.unconsumed_tail
    # OpenCV stops at the same damaged byte.
    except zlib.error:
        return True
    return left > 0


def _has_other_masks(bmp: Payload) -> bool:
    if len(bmp) < _BMP_MASKS.size or _BMP_HEADER.unpack_from(bmp) != _SHORT_WITH_MASKS:
        return False
    return _BMP_MASKS.unpack_from(bmp) != _USUAL_MASKS


def _has_many_scans(jpeg: bytes) -> bool:
    # The thumbnail in a segment, and a film after the end, are not decoded.
    place, scans = len(_JPEG), 0
    # One byte is found in a tenth of the time of two, and replaced in a third of that of ``count``.
    others = jpeg.replace(_SCAN[1:], b"", _MAX_SCANS + 1)
    if len(jpeg) - len(others) > _MAX_SCANS and jpeg.count(_SCAN) > _MAX_SCANS:
        while scans <= _MAX_SCANS and (found := _MARKER.search(jpeg, place)):
            place = found.end()
            marker = jpeg[place - 1]
            if marker == _END_MARKER:
                break
            scans += marker == _SCAN_MARKER
            place += int.from_bytes(jpeg[place : place + 2], "big")
    return scans > _MAX_SCANS
