from __future__ import annotations

import struct

import cv2
import numpy as np
import pytest

from data.images.headers import encoded_size, is_copied
from data.records.recordio import BrokenRecordError
from tests.support.oriented_images import file_with

IMAGE = np.random.default_rng(0).integers(0, 256, (21, 34, 3), np.uint8)


def encode(suffix: str, image: np.ndarray = IMAGE, *options: int) -> bytes:
    done, encoded = cv2.imencode(suffix, image, options)
    assert done
    return encoded.tobytes()


@pytest.mark.parametrize("image", [IMAGE, IMAGE[..., 0]], ids=["color", "gray"])
@pytest.mark.parametrize("options", [(), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1)])
def test_jpegs_tell_their_size(image, options) -> None:
    assert encoded_size(encode(".jpg", image, *options)) == (21, 34)


def test_pngs_tell_their_size() -> None:
    assert encoded_size(encode(".png")) == (21, 34)


def test_a_thumbnail_is_not_the_image() -> None:
    thumbnail = encode(".jpg", IMAGE[:8, :8])
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(thumbnail)) + thumbnail
    jpeg = encode(".jpg")
    assert encoded_size(jpeg[:2] + segment + b"\xff" + jpeg[2:]) == (21, 34)


@pytest.mark.parametrize("marker", [0xC4, 0xC8, 0xCC])
def test_tables_are_no_frames(marker: int) -> None:
    """ITU-T T.81, table B.1: of C0 to CF these three begin no frame."""
    segment = bytes([0xFF, marker]) + struct.pack(">H", 12) + bytes(10)
    jpeg = encode(".jpg")
    assert encoded_size(jpeg[:2] + segment + jpeg[2:]) == (21, 34)


@pytest.mark.parametrize("marker", [m for m in range(0xC0, 0xD0) if m not in (0xC4, 0xC8, 0xCC)])
def test_all_other_markers_of_the_table_are_frames(marker: int) -> None:
    jpeg = encode(".jpg")
    frame = jpeg.index(b"\xff\xc0")
    assert encoded_size(jpeg[: frame + 1] + bytes([marker]) + jpeg[frame + 2 :]) == (21, 34)


def test_a_frame_that_is_cut_behind_an_end_is_left_to_the_decoder() -> None:
    """The last nine bytes are a frame's; of eight the size would lie beyond the payload."""
    assert encoded_size(b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xd9\x00") is None


def test_other_formats_are_left_to_the_decoder() -> None:
    assert encoded_size(encode(".bmp")) is None


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.5, 0.99])
def test_what_is_cut_off_is_left_to_the_decoder(suffix: str, share: float) -> None:
    payload = encode(suffix)
    assert encoded_size(payload[: int(share * len(payload))]) is None


def test_a_header_that_leads_nowhere_is_left_to_the_decoder() -> None:
    assert encoded_size(b"\xff\xd8\xff\xe0\xff\xff" + bytes(100)) is None


def test_no_size_is_no_size() -> None:
    payload = bytearray(encode(".png"))
    payload[16:20] = bytes(4)
    assert encoded_size(bytes(payload)) is None


@pytest.mark.parametrize(("height", "fits"), [(8192, True), (8193, False)])
def test_an_image_of_more_pixels_than_are_decoded_is_refused(height: int, fits: bool) -> None:
    payload = bytearray(encode(".png"))
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
