"""Sizes and orientations from headers; OpenCV turns images alike where it knows the format."""

from __future__ import annotations

import struct

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.decoding import decode_file, decode_rgb
from data.headers import encoded_size, is_copied, may_turn, orientation
from data.records.recordio import BrokenRecordError
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

IMAGE = np.random.default_rng(0).integers(0, 256, (21, 34, 3), np.uint8)
ALL = range(1, 9)
SUFFIXES = [".jpg", ".png", ".webp", ".tiff"]


def encode_noise(suffix: str, image: np.ndarray = IMAGE, *options: int) -> bytes:
    return encode(suffix, image, *options)


@pytest.mark.parametrize("image", [IMAGE, IMAGE[..., 0]], ids=["color", "gray"])
@pytest.mark.parametrize("options", [(), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1)])
def test_the_size_of_a_jpeg(image, options) -> None:
    assert encoded_size(encode_noise(".jpg", image, *options)) == (21, 34)


def test_the_size_of_a_png() -> None:
    assert encoded_size(encode_noise(".png")) == (21, 34)


def test_a_thumbnail_is_not_the_image() -> None:
    thumbnail = encode_noise(".jpg", IMAGE[:8, :8])
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(thumbnail)) + thumbnail
    jpeg = encode_noise(".jpg")
    assert encoded_size(jpeg[:2] + segment + b"\xff" + jpeg[2:]) == (21, 34)


@pytest.mark.parametrize("marker", [0xC4, 0xC8, 0xCC])
def test_tables_are_no_frames(marker: int) -> None:
    """ITU-T T.81, table B.1: of C0 to CF these three begin no frame."""
    segment = bytes([0xFF, marker]) + struct.pack(">H", 12) + bytes(10)
    jpeg = encode_noise(".jpg")
    assert encoded_size(jpeg[:2] + segment + jpeg[2:]) == (21, 34)


@pytest.mark.parametrize("marker", [m for m in range(0xC0, 0xD0) if m not in (0xC4, 0xC8, 0xCC)])
def test_all_other_markers_of_the_table_are_frames(marker: int) -> None:
    jpeg = encode_noise(".jpg")
    frame = jpeg.index(b"\xff\xc0")
    assert encoded_size(jpeg[: frame + 1] + bytes([marker]) + jpeg[frame + 2 :]) == (21, 34)


def test_a_frame_that_is_cut_behind_an_end_is_left_to_the_decoder() -> None:
    """The last nine bytes are a frame's; of eight the size would lie beyond the payload."""
    assert encoded_size(b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xd9\x00") is None


def test_other_formats_are_left_to_the_decoder() -> None:
    assert encoded_size(encode_noise(".bmp")) is None


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.5, 0.99])
def test_what_is_cut_off_is_left_to_the_decoder(suffix: str, share: float) -> None:
    payload = encode_noise(suffix)
    assert encoded_size(payload[: int(share * len(payload))]) is None


def test_a_segment_that_ends_beyond_the_file_is_left_to_the_decoder() -> None:
    assert encoded_size(b"\xff\xd8\xff\xe0\xff\xff" + bytes(100)) is None


@pytest.mark.parametrize("width", [b"", bytes(3), bytes(7)])
def test_a_png_that_ends_in_its_size_is_left_to_the_decoder(width: bytes) -> None:
    assert encoded_size(encode_noise(".png")[:16] + b"IEND" + width) is None


def test_a_width_of_zero_is_left_to_the_decoder() -> None:
    payload = bytearray(encode_noise(".png"))
    payload[16:20] = bytes(4)
    assert encoded_size(bytes(payload)) is None


@pytest.mark.parametrize(("height", "fits"), [(8192, True), (8193, False)])
def test_an_image_of_more_pixels_than_are_decoded_is_refused(height: int, fits: bool) -> None:
    payload = bytearray(encode_noise(".png"))
    payload[16:24] = struct.pack(">II", 8192, height)
    if fits:
        assert encoded_size(bytes(payload)) == (height, 8192)
        return
    with pytest.raises(BrokenRecordError, match="8193 x 8192 pixels, more than the 67,108,864"):
        encoded_size(bytes(payload))


@pytest.mark.parametrize(
    ("suffix", "orientation", "copied"),
    [(".jpg", 1, True), (".png", 1, True), (".jpg", 6, False), (".png", 2, False),
     (".webp", 1, False), (".tiff", 1, False)],
)  # fmt: skip
def test_upright_jpegs_and_pngs_are_copied(suffix: str, orientation: int, copied: bool) -> None:
    assert is_copied(file_with(suffix, orientation)) == copied


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
def test_both_byte_orders_and_any_position_among_the_entries(order: str, write) -> None:
    for before in (0, 5, 30):
        assert orientation(write(SEEN, exif_block(6, order, before))) == 6


def test_another_block_may_come_first() -> None:
    """OpenCV looks at the first segment of the kind alone."""
    payload = jpeg_with(stored(8), exif_block(8), other_first=True)
    assert orientation(payload) == 8
    assert_seen(decode_file(payload))


def test_what_only_looks_like_a_segment_of_a_jpeg_is_skipped() -> None:
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
def test_a_damaged_exif_block_has_no_orientation(write, block: bytes) -> None:
    assert orientation(write(SEEN, block)) == 1


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".bmp", ".ppm"])
def test_a_file_without_a_block_is_upright(suffix: str) -> None:
    assert orientation(encode(suffix, SEEN)) == 1


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_damage_raises_an_error(data: st.DataObject) -> None:
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


def has_exif(payload: bytes, before: bytes = b"other") -> bool:
    content = np.frombuffer(before + payload + b"Exif\0\0", np.uint8)
    return bool(may_turn(content, len(before), len(before) + len(payload)))


def test_a_jpeg_without_exif_block_has_none() -> None:
    for options in ((), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1), (cv2.IMWRITE_JPEG_RST_INTERVAL, 1)):
        assert not has_exif(encode_noise(".jpg", IMAGE, *options))


@pytest.mark.parametrize("other_first", [False, True])
@pytest.mark.parametrize("number", ALL)
def test_an_exif_block_of_a_jpeg_is_seen(number: int, other_first: bool) -> None:
    assert has_exif(jpeg_with(SEEN, exif_block(number), other_first))


@pytest.mark.parametrize("insert", [b"\xff", b"\x00", b"\xff\xe0\x00\x01", b"\xff\xe0\xff\xff"])
def test_segments_that_cannot_be_followed_count_as_exif(insert: bytes) -> None:
    plain = encode_noise(".jpg")
    assert has_exif(plain[:2] + insert + plain[2:])


@given(st.binary(max_size=60), st.integers(0, 40), st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_whatever_opencv_turns_has_an_exif_block(junk: bytes, place: int, number: int) -> None:
    """Damaged in any way: what is taken for plain is decoded as it is stored."""
    payload = bytearray(jpeg_with(IMAGE, exif_block(number)))
    payload[place : place + len(junk)] = junk
    turned = cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_COLOR)
    stored_flag = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    as_stored = cv2.imdecode(np.frombuffer(payload, np.uint8), stored_flag)
    if turned is not None and not np.array_equal(turned, as_stored):
        assert has_exif(bytes(payload))
