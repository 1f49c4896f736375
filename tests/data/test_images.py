from __future__ import annotations

import cv2
import numpy as np
import pytest

from data.images import decode_rgb
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


@pytest.mark.parametrize("place", [8, 33])
def test_a_png_whose_chunk_is_longer_than_the_file_gets_no_memory(make_image, place: int) -> None:
    image = bytearray(make_image(1))
    image[place : place + 4] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(BrokenRecordError, match="cut off or damaged"):
        decode_rgb(memoryview(bytes(image)))
