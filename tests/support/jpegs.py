"""JPEGs in memory, between bytes of Python and the addresses that compiled code takes."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Optional

import cv2
import numpy as np
from numpy.typing import NDArray

from data.decoding import Image
from data.libjpeg import decode_jpegs
from data.records.record_set import Jpegs


def as_jpeg(image: Image, *options: int) -> bytes:
    """Encode pixels, with options of OpenCV."""
    done, encoded = cv2.imencode(".jpg", image, options)
    assert done
    return encoded.tobytes()


def decode_bytes(payloads: Sequence[Optional[bytes]], images: NDArray[np.uint8]) -> list[int]:
    """``decode_jpegs`` of bytes; None stands for what is not to be decoded."""
    kept = [np.frombuffer(payload or b"", np.uint8) for payload in payloads]
    addresses = np.array([each.ctypes.data for each in kept], np.uint64)
    sizes = np.array([each.size for each in kept], np.int64)
    return decode_jpegs(addresses, sizes, images).tolist()


def bytes_of(jpegs: Jpegs) -> list[Optional[bytes]]:
    """The bytes of JPEGs in memory; None for those of size 0."""
    return [
        ctypes.string_at(address, size) if size else None
        for address, size in zip(jpegs.addresses.tolist(), jpegs.sizes.tolist())
    ]


def jpeg_of_scans(scans: int, progressive: bool = True) -> bytes:
    """A JPEG whose first scan, without its tables, is repeated."""
    image = np.full((16, 16, 3), 90, np.uint8)
    options = [cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive)]
    jpeg = cv2.imencode(".jpg", image, options)[1].tobytes()
    start = jpeg.index(b"\xff\xda")
    marker = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")
    found = marker.search(jpeg, start + 2)
    assert found is not None
    first = jpeg[start : found.start()]
    return jpeg[:start] + first * (scans - jpeg.count(b"\xff\xda")) + jpeg[start:]
