from __future__ import annotations

import resource
import struct
from typing import Optional

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.decoding import FILE_ENDINGS, Image, decode_file, decode_jpegs, decode_rgb, turn_upright
from data.records.recordio import BrokenRecordError
from tests.support.oriented_images import SEEN, stored


def test_colors_come_as_rgb_and_gray_images_as_three_planes(make_image) -> None:
    assert (
        decode_rgb(memoryview(make_image(200))).tolist()
        == np.full((16, 16, 3), (200, 7, 55)).tolist()
    )
    gray = cv2.imencode(".png", np.full((4, 6), 9, np.uint8))[1].tobytes()
    assert (decode_rgb(gray) == np.full((4, 6, 3), 9)).all()


COLORS = np.random.default_rng(0).integers(0, 256, (21, 34, 3), np.uint8)
LOSSLESS = (".bmp", ".dib", ".webp", ".tif", ".tiff", ".ppm", ".pnm", ".ras", ".sr", ".png")


def encode(suffix: str) -> bytes:
    options = [cv2.IMWRITE_WEBP_QUALITY, 101] if suffix == ".webp" else []
    gray = suffix in (".pgm", ".pbm")
    image = np.where(COLORS[..., 0] > 128, 255, 0).astype(np.uint8) if gray else COLORS[..., ::-1]
    if suffix in (".hdr", ".pic"):
        image = (image / 255).astype(np.float32)
    done, encoded = cv2.imencode(suffix, image, options)
    assert done
    return encoded.tobytes()


@pytest.mark.parametrize("suffix", FILE_ENDINGS)
def test_a_file_of_every_ending_is_decoded(suffix: str) -> None:
    image = decode_file(encode(suffix))
    assert image.dtype == np.uint8
    if suffix in LOSSLESS:
        np.testing.assert_array_equal(image, COLORS)
    elif suffix in (".pgm", ".pbm"):
        np.testing.assert_array_equal(image[..., 2], np.where(COLORS[..., 0] > 128, 255, 0))
    elif suffix in (".hdr", ".pic"):
        assert np.abs(image.astype(int) - COLORS).max() <= 3
    else:
        assert image.shape == COLORS.shape
        assert np.corrcoef(image.mean(2).ravel(), COLORS.mean(2).ravel())[0, 1] > 0.85


@pytest.mark.parametrize("suffix", [".tif", ".pgm", ".ras", ".hdr"])
def test_of_records_four_formats_are_decoded(suffix: str) -> None:
    with pytest.raises(BrokenRecordError, match="no JPEG, PNG, BMP or WebP"):
        decode_rgb(encode(suffix))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"PF",
        b"GIF89a",
        b"\x76\x2f\x31\x01",
        b"P0",
        b"P7",
        b"\0\0\0\x0cjP  \r\n\x87\n",
        b"\xff\x4f\xff\x51",
    ],
)
def test_a_file_of_no_known_format(payload: bytes) -> None:
    with pytest.raises(BrokenRecordError, match="of no format that is known"):
        decode_file(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"P5\n60000 60000\n255\n" + bytes(100),
        b"P1\n60000 60000\n1 0 1",
        encode(".bmp")[:18] + struct.pack("<ii", 60000, 60000) + encode(".bmp")[26:],
        b"\x59\xa6\x6a\x95" + struct.pack(">7I", 60000, 60000, 24, 0, 1, 0, 0) + bytes(100),
        encode(".hdr").replace(b"-Y 21 +X 34", b"-Y 60000 +X 60000"),
    ],
    ids=["pgm", "pbm", "bmp", "ras", "hdr"],
)
def test_a_file_that_claims_to_be_huge_gets_no_memory(payload: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BrokenRecordError, match="cannot be decoded"):
        decode_file(payload)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 16


@pytest.mark.parametrize("payload", [b"", b"junk", b"\xff\xd8\xff\xe0 a JPEG's beginning"])
def test_what_is_no_image_is_a_broken_record(payload: bytes) -> None:
    with pytest.raises(BrokenRecordError, match="cannot be decoded"):
        decode_rgb(payload)


def test_an_image_that_claims_to_be_huge_is_refused(make_image) -> None:
    image = bytearray(make_image(1))
    image[16:24] = (1 << 20).to_bytes(4, "big") * 2
    with pytest.raises(BrokenRecordError, match="cannot be decoded"):
        decode_rgb(bytes(image))


@pytest.mark.parametrize("place", [8, 33])
def test_a_png_whose_chunk_is_longer_than_the_file_gets_no_memory(make_image, place: int) -> None:
    image = bytearray(make_image(1))
    image[place : place + 4] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(BrokenRecordError, match="cut off or damaged"):
        decode_rgb(memoryview(bytes(image)))


@pytest.mark.parametrize("number", range(1, 9))
def test_every_orientation_is_turned_upright(number: int) -> None:
    upright = turn_upright(stored(number), number)
    np.testing.assert_array_equal(upright, SEEN)
    assert upright.flags.c_contiguous


_SAMPLINGS = (
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
)


def as_jpeg(image: Image, *options: int) -> bytes:
    done, encoded = cv2.imencode(".jpg", image, options)
    assert done
    return encoded.tobytes()


def decoded_in_place(payload: bytes, height: int, width: int) -> Optional[Image]:
    image = np.full((height, width, 3), 77, np.uint8)
    return None if decode_jpegs([payload], [image]) else image


@given(
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    quality=st.integers(1, 100),
    sampling=st.sampled_from(_SAMPLINGS),
    progressive=st.booleans(),
    interval=st.sampled_from([0, 1, 3]),
    is_gray=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_a_plain_jpeg_has_the_same_pixels_in_place(
    size, quality, sampling, progressive, interval, is_gray, seed
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (*size, 1 if is_gray else 3), np.uint8)
    if seed % 2:
        image = cv2.blur(image, (5, 5))
    payload = as_jpeg(
        image,
        *(cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling),
        *(cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive), cv2.IMWRITE_JPEG_RST_INTERVAL, interval),
    )
    found = decoded_in_place(payload, *size)
    assert found is not None
    np.testing.assert_array_equal(found, decode_rgb(payload))


@pytest.mark.parametrize(("height", "width"), [(24, 35), (24, 37), (23, 36), (36, 24), (1, 1)])
def test_a_jpeg_of_another_size_is_not_decoded_in_place(height: int, width: int) -> None:
    assert decoded_in_place(as_jpeg(SEEN), height, width) is None


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_jpeg_that_is_cut_off_is_not_decoded_in_place(share: float) -> None:
    payload = as_jpeg(COLORS)
    assert decoded_in_place(payload[: int(share * len(payload))], *COLORS.shape[:2]) is None


def test_a_jpeg_that_claims_to_be_huge_gets_no_memory() -> None:
    payload = as_jpeg(SEEN)
    place = payload.index(b"\xff\xc0") + 5
    huge = payload[:place] + struct.pack(">HH", 60000, 60000) + payload[place + 4 :]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert decoded_in_place(huge, *SEEN.shape[:2]) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 12


def test_what_is_no_jpeg_of_the_size_keeps_no_other_from_its_image() -> None:
    whole, other = as_jpeg(SEEN), as_jpeg(COLORS)
    images = [np.full(SEEN.shape, 77, np.uint8) for _ in range(8)]
    payloads = [whole, None, whole, whole[:100], other, whole, None]
    assert decode_jpegs(payloads, images) == [1, 3, 4, 6]
    for place in (0, 2, 5):
        np.testing.assert_array_equal(images[place], decode_rgb(whole))
    assert (images[1] == 77).all() and (images[7] == 77).all()
