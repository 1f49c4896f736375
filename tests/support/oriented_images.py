"""Image files that say how to turn them, in every place where a format has room for it."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image

from data.decoding import Image

SEEN: Image = np.zeros((24, 36, 3), np.uint8)
"""What a camera saw: red above green on the left, blue above white on the right."""
SEEN[:12, :18], SEEN[12:, :18] = (230, 20, 20), (20, 220, 20)
SEEN[:12, 18:], SEEN[12:, 18:] = (20, 20, 230), (240, 240, 240)


def stored(orientation: int) -> Image:
    """Return the pixels as a camera stores them that notes this orientation.

    From 5 on, rows and columns change places; then the axes of a table are reversed.
    """
    transposed = SEEN.transpose(1, 0, 2) if orientation > 4 else SEEN
    axes = {1: (), 2: (1,), 3: (0, 1), 4: (0,), 5: (), 6: (0,), 7: (0, 1), 8: (1,)}
    return np.ascontiguousarray(np.flip(transposed, axes[orientation]))


def exif_block(orientation: int, order: str = "<", before: int = 1) -> bytes:
    """Return an EXIF block, with some entries of other tags before the orientation's."""
    begin = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, before + 1)
    others = [struct.pack(f"{order}HHII", 1 + i, 4, 1, 7 + i) for i in range(before)]
    entry = struct.pack(f"{order}HHIHHI", 0x112, 3, 1, orientation, 0, 0)
    return begin + b"".join(others) + entry


def _saved(image: Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(image).save(file, kind, **options)
    return file.getvalue()


def jpeg_with(image: Image, block: bytes, other_first: bool = False) -> bytes:
    """Return a JPEG with an EXIF block, after a segment of the same kind if asked for."""
    saved = _saved(image, "JPEG", quality=100, exif=b"Exif\0\0" + block)
    other = b"http://ns.adobe.com/xap/1.0/\0<x/>"
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(other)) + other
    return saved[:2] + segment * other_first + saved[2:]


def png_with(image: Image, block: bytes) -> bytes:
    # Pillow takes the first six bytes away again, here and in a WebP.
    return _saved(image, "PNG", exif=b"Exif\0\0" + block)


def webp_with(image: Image, block: bytes) -> bytes:
    return _saved(image, "WEBP", lossless=True, exif=b"Exif\0\0" + block)


def file_with(suffix: str, orientation: int) -> bytes:
    """Return a file of a format, whose pixels are stored and marked with an orientation."""
    image = stored(orientation)
    if suffix == ".tiff":
        exif = PIL.Image.Exif()
        exif[0x112] = orientation
        return _saved(image, "TIFF", exif=exif)
    writers: dict[str, Callable[[Image, bytes], bytes]]
    writers = {".jpg": jpeg_with, ".png": png_with, ".webp": webp_with}
    return writers[suffix](image, exif_block(orientation))


def assert_seen(image: Image) -> None:
    """Check that an image shows what the camera saw, not turned; a JPEG may blur the borders."""
    assert image.shape == SEEN.shape
    corners = np.abs(image.astype(int) - SEEN)[[3, 3, -4, -4], [3, -4, 3, -4]]
    assert corners.max() < 16
