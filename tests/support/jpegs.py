"""JPEGs in memory, between bytes of Python and the addresses that compiled code takes."""

from __future__ import annotations

import ctypes
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
