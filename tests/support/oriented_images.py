"""Image files that say how to turn them, in every place where a format has room for it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import cv2
import numpy as np

from data.decoding import Image

SEEN: Image = np.zeros((24, 36, 3), np.uint8)
"""What a camera saw: red above green on the left, blue above white on the right."""
SEEN[:12, :18], SEEN[12:, :18] = (230, 20, 20), (20, 220, 20)
SEEN[:12, 18:], SEEN[12:, 18:] = (20, 20, 230), (240, 240, 240)


def stored(orientation: int, seen: Image = SEEN) -> Image:
    """Return the pixels as a camera stores them that notes this orientation.

    By the words of the standard: where the stored image's first row and first column are seen.
    """
    places = {
        1: seen,
        2: np.fliplr(seen),
        3: np.rot90(seen, 2),
        4: np.flipud(seen),
        5: seen.transpose(1, 0, 2),
        # To be seen, it is turned clockwise; so it is stored turned to the other side.
        6: np.rot90(seen, 1),
        7: np.rot90(seen, 2).transpose(1, 0, 2),
        8: np.rot90(seen, -1),
    }
    return np.ascontiguousarray(places[orientation])


def exif_block(orientation: int, order: str = "<", before: int = 1) -> bytes:
    """Return an EXIF block, with some entries of other tags before the orientation's."""
    begin = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, before + 1)
    others = [struct.pack(f"{order}HHII", 1 + i, 4, 1, 7 + i) for i in range(before)]
    entry = struct.pack(f"{order}HHIHHI", 0x112, 3, 1, orientation, 0, 0)
    return begin + b"".join(others) + entry


def jpeg_with(image: Image, block: bytes, other_first: bool = False) -> bytes:
    """Return a JPEG with an EXIF block, behind a segment of the same kind if asked for."""
    plain = encode(".jpg", image, cv2.IMWRITE_JPEG_QUALITY, 100)
    contents = [b"http://ns.adobe.com/xap/1.0/\0<x/>"] * other_first + [b"Exif\0\0" + block]
    segments = [b"\xff\xe1" + struct.pack(">H", 2 + len(one)) + one for one in contents]
    return plain[:2] + b"".join(segments) + plain[2:]


def png_with(image: Image, block: bytes) -> bytes:
    plain = encode(".png", image)
    size, check = len(block), zlib.crc32(b"eXIf" + block)
    return plain[:33] + struct.pack(f">I4s{size}sI", size, b"eXIf", block, check) + plain[33:]


def webp_with(image: Image, block: bytes) -> bytes:
    plain = encode(".webp", image, cv2.IMWRITE_WEBP_QUALITY, 101)
    height, width = image.shape[:2]
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    head = b"VP8X" + struct.pack("<I", 10) + bytes([8, 0, 0, 0]) + sides
    chunk = b"EXIF" + struct.pack("<I", len(block)) + block + b"\0" * (len(block) % 2)
    body = b"WEBP" + head + plain[12:] + chunk
    return b"RIFF" + struct.pack("<I", len(body)) + body


def tiff_with(image: Image, orientation: int) -> bytes:
    content = bytearray(encode(".tiff", image, cv2.IMWRITE_TIFF_COMPRESSION, 1))
    (place,) = struct.unpack_from("<I", content, 4)
    (count,) = struct.unpack_from("<H", content, place)
    entries = [bytes(content[place + 2 + 12 * i :][:12]) for i in range(count)]
    entries = [entry for entry in entries if entry[:2] != b"\x12\x01"]
    entries.append(struct.pack("<HHIHH", 0x112, 3, 1, orientation, 0))
    content += b"\0" * (len(content) % 2)
    struct.pack_into("<I", content, 4, len(content))
    entries.sort(key=lambda entry: struct.unpack_from("<H", entry))
    return bytes(content + struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4))


def file_with(suffix: str, orientation: int, seen: Image = SEEN) -> bytes:
    """Return a file of a format, whose pixels are stored and marked with an orientation."""
    image = stored(orientation, seen)
    if suffix == ".tiff":
        return tiff_with(image, orientation)
    writers: dict[str, Callable[[Image, bytes], bytes]]
    writers = {".jpg": jpeg_with, ".png": png_with, ".webp": webp_with}
    return writers[suffix](image, exif_block(orientation))


def assert_seen(image: Image) -> None:
    """Check that an image shows what the camera saw, not turned; a JPEG may blur the borders."""
    assert image.shape == SEEN.shape
    corners = np.abs(image.astype(int) - SEEN)[[3, 3, -4, -4], [3, -4, 3, -4]]
    assert corners.max() < 16


def encode(suffix: str, image: Image, *options: int) -> bytes:
    """Return an RGB image, encoded by OpenCV."""
    done, encoded = cv2.imencode(suffix, image[..., ::-1], options)
    assert done
    return bytes(encoded)
