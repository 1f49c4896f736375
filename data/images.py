"""Decoding: the one place where encoded bytes become pixels, and pixels what networks take.

MXNet's networks want RGB while OpenCV decodes to BGR unless told otherwise, and OpenCV answers
broken images sometimes with None and sometimes with an exception of its own. Everybody who needs
pixels asks here.
"""

from __future__ import annotations

import os
import struct

import cv2
import numpy as np
from numpy.typing import NDArray

from data.recordio import BrokenRecordError, Payload

Image = NDArray[np.uint8]

# Read when OpenCV first needs it. Its wider instructions gain nothing on images of this size, but
# lower the clock of some processors, and with it the speed of decoding, by a tenth.
os.environ.setdefault("OPENCV_IPP", "sse42")

# JPEG, PNG, BMP, WebP. OpenCV knows a dozen formats more, which no set has, and each is another
# decoder to be attacked.
_BEGINNINGS = (b"\xff\xd8", b"\x89P", b"BM", b"RI")

_CHUNK = struct.Struct(">I4s")

_AS_STORED = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION


def decode_rgb(payload: Payload) -> Image:
    """Decode a JPEG or PNG, BMP or WebP.

    Returns:
        uint8 ``[height, width, 3]``, RGB.

    Raises:
        BrokenRecordError: the bytes are no image.
    """
    beginning = bytes(payload[:2])
    if beginning not in _BEGINNINGS:
        raise BrokenRecordError("the image cannot be decoded: it is no JPEG, PNG, BMP or WebP")
    if beginning == b"\x89P" and not _has_whole_chunks(payload):
        raise BrokenRecordError("the image cannot be decoded: it is cut off or damaged")
    image = decode_jpeg(np.frombuffer(payload, np.uint8))
    if image is None:
        raise BrokenRecordError("the image cannot be decoded")
    return image


def decode_jpeg(payload: NDArray[np.uint8]) -> Image | None:
    """Decode what begins like a JPEG, the shortest way; None if it cannot be decoded."""
    try:
        image: Image | None = cv2.imdecode(payload, _AS_STORED)
    except cv2.error:
        return None
    return image


def _has_whole_chunks(payload: Payload) -> bool:
    """Whether a PNG's chunks lie within it; OpenCV makes memory of what their lengths say."""
    position = 8
    while position + _CHUNK.size <= len(payload):
        position += 12 + _CHUNK.unpack_from(payload, position)[0]
    return position <= len(payload)
