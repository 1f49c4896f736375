from __future__ import annotations

import struct

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.decoding import decode_file, decode_rgb
from data.headers import encoded_size, is_copied, orientation
from tests.support import oriented_images
from tests.support.oriented_images import SEEN, assert_seen, encode, exif_block, jpeg_with, png_with

IMAGE = np.random.default_rng(0).integers(0, 256, (21, 34, 3), np.uint8)
JPEG, PNG = encode(".jpg", IMAGE), encode(".png", IMAGE)


def test_the_size_of_an_image() -> None:
    assert encoded_size(PNG) == (21, 34)
    for image in (IMAGE, IMAGE[..., 0]):
        for progressive in (0, 1):
            jpeg = encode(".jpg", image, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
            assert encoded_size(jpeg) == (21, 34)
    thumbnail = encode(".jpg", IMAGE[:8, :8])
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(thumbnail)) + thumbnail
    assert encoded_size(JPEG[:2] + segment + b"\xff" + JPEG[2:]) == (21, 34)
    # ITU-T T.81, table B.1: of C0 to CF all but three begin a frame.
    frame = JPEG.index(b"\xff\xc0")
    for marker in range(0xC0, 0xD0):
        changed = JPEG[: frame + 1] + bytes([marker]) + JPEG[frame + 2 :]
        if marker in (0xC4, 0xC8, 0xCC):
            changed = JPEG[:2] + bytes([0xFF, marker, 0, 12]) + bytes(10) + JPEG[2:]
        assert encoded_size(changed) == (21, 34), marker
    assert encoded_size(PNG[:16] + struct.pack(">II", 8192, 8192) + PNG[24:]) == (8192, 8192)


def test_what_is_damaged_large_or_of_another_format_is_left_to_the_decoder() -> None:
    for payload in (
        *(whole[: int(share * len(whole))] for whole in (JPEG, PNG) for share in (0, 0.05, 0.99)),
        *(PNG[:16] + b"IEND" + width for width in (b"", bytes(3), bytes(7))),
        PNG[:16] + bytes(4) + PNG[20:],
        PNG[:16] + struct.pack(">II", 8192, 8193) + PNG[24:],
        # Of a frame there are four bytes, of five the size would be within the payload.
        b"\xff\xd8\xff\xc0\x00\x06\x08\0\1\0" + b"\xff\xd9",
        b"\xff\xd8\xff\xe0\xff\xff" + bytes(100),
        encode(".bmp", IMAGE),
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
        # Upright JPEGs and PNGs are copied.
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
        b"", b"II*\0", b"XX" + six[2:], exif_block(0), exif_block(9), six[:20],
        b"II*\0" + struct.pack("<I", 2**32 - 1) + six[8:],
        # A long number in the place of the short one.
        six.replace(struct.pack("<HH", 0x112, 3), struct.pack("<HH", 0x112, 4)),
    ):  # fmt: skip
        assert orientation(write(SEEN, block)) == 1, block


def test_what_only_looks_like_a_segment_is_skipped() -> None:
    block = b"\xff\xe1" + struct.pack(">H", 100) + b"Exif\0\0" + exif_block(3)
    comment = b"\xff\xfe" + struct.pack(">H", 2 + len(block)) + block
    plain = encode(".jpg", SEEN)
    pixels = b"\xff\xda" + struct.pack(">H", 2) + block
    end = b"\xff\xd9" + struct.pack(">H", 2) + block
    for inner in (comment + plain[2:], b"\xff" + comment + b"\xff" + plain[2:], pixels, end):
        assert orientation(plain[:2] + inner) == 1
    for payload in (plain + block, *(encode(end, SEEN) for end in (".png", ".webp", ".bmp"))):
        assert orientation(payload) == 1


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10), st.sampled_from("<>"), st.integers(0, 20),
    st.sampled_from([jpeg_with, png_with]),
)  # fmt: skip
def test_opencv_finds_the_same(number: int, order: str, before: int, write) -> None:
    payload = write(SEEN, exif_block(number, order, before))
    theirs = cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_COLOR_RGB)
    np.testing.assert_array_equal(decode_file(payload), theirs)
