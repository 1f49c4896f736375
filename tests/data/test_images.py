from __future__ import annotations

import cv2
import numpy as np
import pytest

from data.images import decode_jpeg, decode_rgb, write_planes
from data.recordio import BrokenRecordError


def test_colors_come_as_rgb_and_gray_images_as_three_planes(make_image) -> None:
    assert (
        decode_rgb(memoryview(make_image(200))).tolist()
        == np.full((16, 16, 3), (200, 7, 55)).tolist()
    )
    gray = cv2.imencode(".png", np.full((4, 6), 9, np.uint8))[1].tobytes()
    assert (decode_rgb(gray) == np.full((4, 6, 3), 9)).all()


@pytest.mark.parametrize("payload", [b"", b"junk", b"\xff\xd8\xff\xe0 a JPEG's beginning"])
def test_what_is_no_image_is_a_broken_record(payload: bytes) -> None:
    with pytest.raises(BrokenRecordError, match="cannot be decoded"):
        decode_rgb(payload)


def test_an_image_that_claims_to_be_huge_is_refused(make_image) -> None:
    image = bytearray(make_image(1))
    image[16:24] = (1 << 20).to_bytes(4, "big") * 2
    with pytest.raises(BrokenRecordError, match="cannot be decoded"):
        decode_rgb(bytes(image))


def jpeg(image: np.ndarray, *parameters: int) -> np.ndarray:
    return cv2.imencode(".jpg", image, parameters)[1].ravel()


@pytest.mark.parametrize("quality", [10, 75, 100])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("progressive", [0, 1])
def test_the_short_way_gives_the_same_pixels(quality, channels, progressive) -> None:
    noise = np.random.default_rng(quality).integers(0, 256, (29, 35, channels), np.uint8)
    blurred = cv2.GaussianBlur(noise, (5, 5), 0)
    parameters = (cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
    payload = jpeg(blurred, *parameters)
    image = np.zeros((29, 35, 3), np.uint8)
    assert decode_jpeg(payload, image)
    np.testing.assert_array_equal(image, decode_rgb(payload.tobytes()))


@pytest.mark.parametrize("size", [(4, 8), (8, 4), (16, 2), (64, 64)])
def test_the_short_way_takes_images_of_one_size_alone(size: tuple[int, int]) -> None:
    # The memory behind it stays as it was, however large an image claims to be.
    surroundings = np.full((4, 6, 6, 3), 7, np.uint8)
    assert not decode_jpeg(jpeg(np.zeros((*size, 3), np.uint8)), surroundings[1])
    assert (surroundings[[0, 2, 3]] == 7).all()


def test_the_short_way_refuses_what_is_damaged() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    payload, image = jpeg(noise), np.zeros((32, 32, 3), np.uint8)
    assert decode_jpeg(payload, image)
    for damaged in (payload[: len(payload) // 2], payload[:2], payload[:0]):
        assert not decode_jpeg(damaged, image)


@pytest.mark.parametrize("side", [(1, 0), (37, 39), (78, 32), (117, 48), (253, 232), (255, 255)])
def test_the_short_way_refuses_what_claims_to_be_huge(side: tuple[int, int]) -> None:
    """From 256 pixels on; at 20,000 the bytes are more than 2^30, at 30,000 more than 2^31."""
    payload = jpeg(np.zeros((32, 32, 3), np.uint8))
    start = payload.tobytes().index(b"\xff\xc0")
    payload[start + 5 : start + 9] = side * 2
    surroundings = np.full((3, 32, 32, 3), 7, np.uint8)
    assert not decode_jpeg(payload, surroundings[1])
    assert (surroundings[[0, 2]] == 7).all()


@pytest.mark.parametrize("mirrored", [False, True])
def test_planes_are_written_into_the_batch(mirrored: bool) -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    batch = np.zeros((3, 3, 5, 7), np.uint8)
    write_planes(image, batch[1], mirrored=mirrored)
    expected = image[:, ::-1] if mirrored else image
    assert (batch[1] == expected.transpose(2, 0, 1)).all()
    assert not batch[[0, 2]].any()


@pytest.mark.parametrize("place", [8, 33])
def test_a_png_whose_chunk_is_longer_than_the_file_gets_no_memory(make_image, place: int) -> None:
    image = bytearray(make_image(1))
    image[place : place + 4] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(BrokenRecordError, match="cut off or damaged"):
        decode_rgb(memoryview(bytes(image)))
