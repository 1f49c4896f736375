from __future__ import annotations

import re
import resource
import struct
import time
import zlib
from functools import partial
from itertools import count

import cv2
import numpy as np
import pytest

from data.decoding import BEGINNING_BYTES, FILE_ENDINGS, decode_file, decode_rgb, fit_to, is_image
from data.headers import encoded_size, is_copied, orientation
from data.records.recordio import BrokenRecordError
from tests.support import oriented_images
from tests.support.oriented_images import SEEN, assert_seen, exif_block, jpeg_with, png_with
from tests.support.sets import assert_refused

assert_broken = partial(assert_refused, kind=BrokenRecordError)
COLORS = np.random.default_rng(0).integers(0, 256, (21, 34, 3), np.uint8)
BLACK_OR_WHITE = np.where(COLORS[..., 0] > 128, 255, 0).astype(np.uint8)
LOSSLESS = (".bmp", ".dib", ".webp", ".tif", ".tiff", ".ppm", ".pnm", ".ras", ".sr", ".png")
OTHERS = {
    ".gif": b"GIF89a", ".heic": b"\0\0\0\x18ftypheic", ".jp2": b"\0\0\0\x0cjP  \r\n\x87\n",
    ".pam": b"P7\nWIDTH 8\n", ".psd": b"8BPS\0\1", ".exr": b"v/1\1",
}  # fmt: skip
TOO_LONG = (2**31 - 1).to_bytes(4, "big")
UNKNOWN = (b"", b"PF", b"GIF89a", b"v/1\1", b"P0", b"P7", b"\0\0\0\x0cjP  \r\n\x87\n",
           b"\xff\x4f\xff\x51")  # fmt: skip


def file_of(suffix: str) -> bytes:
    options = [cv2.IMWRITE_WEBP_QUALITY, 101] if suffix == ".webp" else []
    image = BLACK_OR_WHITE if suffix in (".pgm", ".pbm") else COLORS[..., ::-1]
    if suffix in (".hdr", ".pic"):
        image = (image / 255).astype(np.float32)
    return cv2.imencode(suffix, image, options)[1].tobytes()


def test_colors_come_as_rgb_and_gray_images_as_three_planes(make_image) -> None:
    assert (decode_rgb(memoryview(make_image(200))) == np.full((16, 16, 3), (200, 7, 55))).all()
    for flags, value in (((), 9), ((cv2.IMWRITE_PNG_BILEVEL, 1), 255)):
        gray = cv2.imencode(".png", np.full((4, 6), value, np.uint8), flags)[1].tobytes()
        assert (decode_rgb(gray) == np.full((4, 6, 3), value)).all()


@pytest.mark.parametrize("suffix", FILE_ENDINGS)
def test_a_file_of_every_ending_is_decoded(suffix: str) -> None:
    image = decode_file(file_of(suffix))
    assert image.dtype == np.uint8 and image.shape == COLORS.shape
    if suffix in LOSSLESS:
        np.testing.assert_array_equal(image, COLORS)
    elif suffix in (".pgm", ".pbm"):
        np.testing.assert_array_equal(image[..., 2], BLACK_OR_WHITE)
    elif suffix in (".hdr", ".pic"):
        assert np.abs(image.astype(int) - COLORS).max() <= 3
    else:
        assert np.corrcoef(image.mean(2).ravel(), COLORS.mean(2).ravel())[0, 1] > 0.85


def test_files_are_known_by_their_ending_or_their_beginning() -> None:
    for suffix in FILE_ENDINGS:
        beginning = file_of(suffix)[:BEGINNING_BYTES]
        for name in ("face", "face.1", "face.jpg_large", "a.gif"):
            assert is_image(name, beginning), (name, suffix)
        assert is_image(f"A{suffix.upper()}", b"")
    for suffix, beginning in OTHERS.items():
        assert not is_image(f"a{suffix}", beginning)
    # A raw file of a camera begins as a TIFF; OpenCV would decode its thumbnail.
    assert not is_image("a.DNG", file_of(".tif")[:BEGINNING_BYTES])
    assert is_image("a.JFIF", b"")
    texts = (b"", b"BMW is a car of 1916", b"P6 is written", b"notes", b"#!/bin/sh")
    for beginning in (*texts, b"RIFF\1\2\3\4WAVEfmt "):
        assert not is_image("notes", beginning) and not is_image("a.txt", beginning)


BMP, JPEG, PNG = map(file_of, (".bmp", ".jpg", ".png"))


@pytest.mark.parametrize(("decode", "payload", "message"), [
    (decode_file, b"P5\n60000 60000\n255\n" + bytes(100), ""),
    (decode_file, b"P1\n60000 60000\n1 0 1", ""),
    (decode_file, BMP[:18] + struct.pack("<ii", 60000, 60000) + BMP[26:], ""),
    (decode_file, b"Y\xa6j\x95" + struct.pack(">7I", 60000, 60000, 24, 0, 1, 0, 0) + bytes(99), ""),
    (decode_file, file_of(".hdr").replace(b"-Y 21 +X 34", b"-Y 60000 +X 60000"), ""),
    (decode_rgb, PNG[:16] + (1 << 20).to_bytes(4, "big") * 2 + PNG[24:], ""),
    *((decode_rgb, memoryview(PNG[:at] + TOO_LONG + PNG[at + 4 :]), ".*cut off or damaged")
      for at in (8, 33)),
    (decode_rgb, b"", ""),
    (decode_rgb, b"\xff\xd8\xff\xe0 a JPEG's beginning", ""),
    *((decode_rgb, file_of(suffix), ".*no JPEG, PNG, BMP or WebP")
      for suffix in (".tif", ".pgm", ".ras", ".hdr")),
    *((decode_file, beginning, ".*of no format that is known") for beginning in UNKNOWN),
], ids=count())  # fmt: skip
def test_what_cannot_be_decoded_gets_no_memory(decode, payload, message: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_broken("cannot be decoded" + message, decode, payload)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 16


def with_chunk(image: bytes, kind: bytes, content: bytes, place: int) -> bytes:
    checksum = zlib.crc32(kind + content).to_bytes(4, "big")
    chunk = len(content).to_bytes(4, "big") + kind + content + checksum
    return image[:place] + chunk + image[place:]


def test_what_a_png_inflates_to_takes_no_time(make_image) -> None:
    zeros = zlib.compress(bytes(1 << 23), 9)
    plain = image = make_image(7)
    for kind in (b"zTXt", b"iTXt", b"iCCP"):
        text = b"a\0" + (b"\1\0\0\0" if kind == b"iTXt" else b"\0") + zeros
        for _ in range(100):
            image = with_chunk(image, kind, text, 33)

    def long(size: int) -> bytes:
        pixels = zlib.compress(bytes(size), 9)
        return with_chunk(plain[:33], b"IDAT", pixels, 33) + plain[-12:]

    began = time.process_time()
    assert (decode_rgb(image) == decode_rgb(plain)).all()
    # Twice the rows, and 64 kB.
    most = 2 * 16 * (1 + 16 * 3) + (1 << 16)
    assert not decode_rgb(long(most - 1)).any()
    for size in (most, 1 << 26):
        assert_broken("its pixels go on after its last row", decode_rgb, long(size))
    assert time.process_time() - began < 3


def jpeg_of_scans(scans: int, progressive: int = 1) -> bytes:
    """A JPEG whose first scan, without its tables, is repeated."""
    image, options = np.full((16, 16, 3), 90, np.uint8), [cv2.IMWRITE_JPEG_PROGRESSIVE, progressive]
    jpeg = cv2.imencode(".jpg", image, options)[1].tobytes()
    start = jpeg.index(b"\xff\xda")
    found = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]").search(jpeg, start + 2)
    assert found is not None
    first = jpeg[start : found.start()]
    return jpeg[:start] + first * (scans - jpeg.count(b"\xff\xda")) + jpeg[start:]


def test_a_jpeg_of_more_than_32_scans_is_broken() -> None:
    """Each scan passes over all pixels: thousands of them take as long as thousands of images."""
    usual = decode_rgb(jpeg_of_scans(10))
    for decode in (decode_rgb, decode_file):
        np.testing.assert_array_equal(decode(jpeg_of_scans(32)), usual)
        for progressive in (1, 0):
            many = memoryview(jpeg_of_scans(33, progressive))
            assert_broken("a JPEG of more than 32 scans", decode, many)


def test_no_bytes_hide_scans_and_others_do_not_count() -> None:
    """A reserved marker has no length that could be skipped; a thumbnail, a film at the end."""
    jpeg = jpeg_of_scans(33)
    place = jpeg.index(b"\xff\xda", jpeg.index(b"\xff\xda") + 2)
    for filler in (b"\xff", b"\xff\x01", b"\xff\x02\xff\xff", b"\xff\xd0"):
        assert_broken("than 32 scans", decode_rgb, jpeg[:place] + filler + jpeg[place:])
    comment = b"\xff\xfe\x03\x22" + b"\xff\xda\0\0" * 200
    many = JPEG[:2] + comment + JPEG[2:] + b"\0\2" + b"\xff\xda\0\2" * 200
    np.testing.assert_array_equal(decode_rgb(many), decode_rgb(JPEG))
    # A search that follows fill bytes from each to the last one takes half a minute.
    filled = b"\xff\xd8" + b"\xff" * 100_000 + b"\0" + b"\xff\xda" * 33
    began = time.process_time()
    assert_broken("cannot be decoded", decode_rgb, filled)
    assert time.process_time() - began < 1


def test_the_size_of_an_image() -> None:
    assert encoded_size(PNG) == (21, 34)
    for image in (COLORS, COLORS[..., 0]):
        for progressive in (0, 1):
            _, jpeg = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_PROGRESSIVE, progressive])
            assert encoded_size(jpeg.tobytes()) == (21, 34)
    thumbnail = cv2.imencode(".jpg", COLORS[:8, :8])[1].tobytes()
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(thumbnail)) + thumbnail
    assert encoded_size(JPEG[:2] + segment + b"\xff" + JPEG[2:]) == (21, 34)
    assert encoded_size(PNG[:16] + struct.pack(">II", 8192, 8192) + PNG[24:]) == (8192, 8192)
    # What is damaged, large or of another format is left to the decoder.
    for payload in (
        *(whole[: int(share * len(whole))] for whole in (JPEG, PNG) for share in (0, 0.05, 0.99)),
        PNG[:16] + bytes(4) + PNG[20:],
        PNG[:16] + struct.pack(">II", 8192, 8193) + PNG[24:],
        # Of a frame there are four bytes, of five the size would be within the payload.
        b"\xff\xd8\xff\xc0\x00\x06\x08\0\1\0" + b"\xff\xd9",
        b"\xff\xd8\xff\xe0\xff\xff" + bytes(100),
        BMP,
    ):
        assert encoded_size(payload) is None, payload[-20:]


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tiff"])
def test_files_and_records_are_decoded_upright(suffix: str) -> None:
    for number in range(1, 9):
        payload = oriented_images.file_with(suffix, number)
        assert_seen(decode_file(payload))
        if suffix in (".jpg", ".png"):
            assert_seen(decode_rgb(payload))
            assert orientation(payload) == number
        assert is_copied(payload) == (number == 1 and suffix in (".jpg", ".png"))


@pytest.mark.parametrize("write", [jpeg_with, png_with, oriented_images.webp_with])
def test_blocks_in_other_forms_and_damaged_ones(write) -> None:
    six = exif_block(6)
    for order in "<>":
        for before in (0, 5, 30):
            assert orientation(write(SEEN, exif_block(6, order, before))) == 6
    if write is jpeg_with:
        # OpenCV looks at the first segment of the kind alone.
        payload = jpeg_with(oriented_images.stored(8), exif_block(8), other_first=True)
        assert orientation(payload) == 8
        assert_seen(decode_file(payload))
    else:
        assert orientation(write(SEEN, b"Exif\0\0" + exif_block(5))) == 5
    for block in (
        b"", b"XX" + six[2:], *map(exif_block, (0, 9)), six[:20],
        b"II*\0" + struct.pack("<I", 2**32 - 1) + six[8:],
    ):  # fmt: skip
        assert orientation(write(SEEN, block)) == 1, block


def smooth(height: int, width: int) -> np.ndarray:
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 3), None, 0, 255, cv2.NORM_MINMAX)


def test_images_of_other_shapes_are_refused_and_of_the_right_size_kept() -> None:
    sizes = ((250, 300), (112, 112)), ((112, 112), (112, 96)), ((1, 4000), (8, 8))
    for size, wanted in (*sizes, ((224, 224), (112, 96))):
        message = f"^a: the image has {size[0]} x {size[1]} pixels, which is an"
        assert_broken(message, fit_to, np.zeros((*size, 3), np.uint8), wanted, "a")
    pixels = smooth(112, 112)
    assert fit_to(pixels, (112, 112), "a") is pixels
    for size in ((224, 192), (56, 48), (113, 97)):
        expected = cv2.resize(smooth(*size), (96, 112), interpolation=cv2.INTER_CUBIC)
        np.testing.assert_array_equal(fit_to(smooth(*size), (112, 96), "a"), expected)


@pytest.mark.parametrize("white", [15, 255, 65535])
@pytest.mark.parametrize(("kind", "planes"), [(b"P2", 1), (b"P3", 3), (b"P5", 1), (b"P6", 3)])
def test_a_portable_map_says_what_is_white(kind: bytes, planes: int, white: int) -> None:
    width = 8 // planes
    samples = np.linspace(0, white, 24).round().astype(int)[: 3 * width * planes]
    head = kind + b"\n# of 3 columns\n%d 3\n%d\n" % (width, white)
    if kind in (b"P2", b"P3"):
        body = b"".join(b"%d\n" % sample for sample in samples)
    else:
        body = samples.astype(">u2" if white > 255 else "u1").tobytes()
    found = decode_file(head + body)[..., :planes]
    assert np.abs(found.ravel() - samples * (255 / white)).max() <= 1
    assert found.min() == 0 and (planes == 3 or found.max() == 255)


def test_a_bmp_with_other_masks_is_no_image() -> None:
    pixels = np.full((2, 2, 4), (10, 20, 30, 0), np.uint8).tobytes()
    head = struct.pack("<2sIHHI", b"BM", 66 + 16, 0, 0, 66)
    head += struct.pack("<IiiHHIIiiII", 40, 2, 2, 1, 32, 3, 16, 0, 0, 0, 0)
    usual = head + struct.pack("<3I", 0xFF0000, 0xFF00, 0xFF) + pixels
    assert decode_rgb(usual)[0, 0].tolist() == [30, 20, 10]
    other = head + struct.pack("<3I", 0xFF, 0xFF00, 0xFF0000) + pixels
    assert_broken("colors lie in an unusual order", decode_rgb, other)
