"""Orientations: found in every format, and turned as OpenCV turns them where it knows them."""

from __future__ import annotations

import struct

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.images.decoding import decode_file, decode_rgb
from data.images.exif import orientation, turn_upright
from tests.support.oriented_images import (
    SEEN,
    assert_seen,
    encode,
    exif_block,
    file_with,
    jpeg_with,
    png_with,
    stored,
    webp_with,
)

ALL = range(1, 9)
SUFFIXES = [".jpg", ".png", ".webp", ".tiff"]


@pytest.mark.parametrize("number", ALL)
def test_what_is_stored_turned_is_seen_upright(number: int) -> None:
    upright = turn_upright(stored(number), number)
    np.testing.assert_array_equal(upright, SEEN)
    assert upright.flags.c_contiguous


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("number", ALL)
def test_a_file_is_decoded_upright(suffix: str, number: int) -> None:
    assert_seen(decode_file(file_with(suffix, number)))


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("number", ALL)
def test_a_record_is_decoded_upright(suffix: str, number: int) -> None:
    payload = file_with(suffix, number)
    assert_seen(decode_rgb(payload))
    assert orientation(payload) == number


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("write", [jpeg_with, png_with, webp_with])
def test_both_byte_orders_and_any_place_among_the_entries(order: str, write) -> None:
    for before in (0, 5, 30):
        assert orientation(write(SEEN, exif_block(6, order, before))) == 6


def test_another_block_may_come_first() -> None:
    """OpenCV looks at the first segment of the kind alone."""
    payload = jpeg_with(stored(8), exif_block(8), other_first=True)
    assert orientation(payload) == 8
    assert_seen(decode_file(payload))


def test_what_only_looks_like_a_segment_of_a_jpeg_is_passed_over() -> None:
    block = b"\xff\xe1" + struct.pack(">H", 100) + b"Exif\0\0" + exif_block(3)
    comment = b"\xff\xfe" + struct.pack(">H", 2 + len(block)) + block
    plain = encode(".jpg", SEEN)
    assert orientation(plain[:2] + comment + plain[2:]) == 1
    assert orientation(plain[:2] + b"\xff" + comment + b"\xff" + plain[2:]) == 1
    assert orientation(plain + block) == 1
    pixels = b"\xff\xda" + struct.pack(">H", 2) + block
    assert orientation(plain[:2] + pixels) == 1


def test_a_chunk_with_the_beginning_of_a_segment() -> None:
    for write in (png_with, webp_with):
        assert orientation(write(SEEN, b"Exif\0\0" + exif_block(5))) == 5


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"II*\0",
        b"XX" + exif_block(6)[2:],
        exif_block(0),
        exif_block(9),
        exif_block(6)[:20],
        b"II*\0" + struct.pack("<I", 2**32 - 1) + exif_block(6)[8:],
        # A long number in the place of the short one.
        exif_block(6).replace(struct.pack("<HH", 0x112, 3), struct.pack("<HH", 0x112, 4)),
    ],
)
@pytest.mark.parametrize("write", [jpeg_with, png_with, webp_with])
def test_a_damaged_block_says_nothing(write, block: bytes) -> None:
    assert orientation(write(SEEN, block)) == 1


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".bmp", ".ppm"])
def test_a_file_without_a_block_is_upright(suffix: str) -> None:
    assert orientation(encode(suffix, SEEN)) == 1


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_damage_is_more_than_no_orientation(data: st.DataObject) -> None:
    payload = bytearray(file_with(data.draw(st.sampled_from(SUFFIXES)), 6))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, min(len(payload), 120) - 1))] = data.draw(
            st.integers(0, 255)
        )
    assert 1 <= orientation(bytes(payload[: data.draw(st.integers(0, len(payload)))])) <= 8


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    number=st.integers(0, 10),
    order=st.sampled_from(["<", ">"]),
    before=st.integers(0, 20),
    write=st.sampled_from([jpeg_with, png_with]),
)
def test_opencv_finds_the_same(number: int, order: str, before: int, write) -> None:
    payload = write(SEEN, exif_block(number, order, before))
    theirs = cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_COLOR_RGB)
    np.testing.assert_array_equal(decode_file(payload), theirs)
