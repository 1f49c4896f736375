from __future__ import annotations

import struct

import cv2
import numpy as np
import pytest

from data.image_headers import encoded_size
from data.recordio import BrokenRecordError

IMAGE = np.random.default_rng(0).integers(0, 256, (21, 34, 3), np.uint8)


def encode(suffix: str, image: np.ndarray = IMAGE, *options: int) -> bytes:
    done, encoded = cv2.imencode(suffix, image, options)
    assert done
    return encoded.tobytes()


@pytest.fixture
def no_decoder(monkeypatch) -> None:
    def refuse(payload: bytes) -> None:
        raise AssertionError("this image need not be decoded")

    monkeypatch.setattr("data.image_headers.decode_rgb", refuse)


@pytest.mark.parametrize("image", [IMAGE, IMAGE[..., 0]], ids=["color", "gray"])
@pytest.mark.parametrize("options", [(), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1)])
def test_jpegs_tell_their_size(no_decoder, image, options) -> None:
    assert encoded_size(encode(".jpg", image, *options)) == (21, 34)


def test_pngs_tell_their_size(no_decoder) -> None:
    assert encoded_size(encode(".png")) == (21, 34)


def test_a_thumbnail_is_not_the_image(no_decoder) -> None:
    thumbnail = encode(".jpg", IMAGE[:8, :8])
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(thumbnail)) + thumbnail
    jpeg = encode(".jpg")
    assert encoded_size(jpeg[:2] + segment + b"\xff" + jpeg[2:]) == (21, 34)


@pytest.mark.parametrize("marker", [0xC4, 0xC8, 0xCC])
def test_tables_are_no_frames(no_decoder, marker: int) -> None:
    """ITU-T T.81, table B.1: of C0 to CF these three begin no frame."""
    segment = bytes([0xFF, marker]) + struct.pack(">H", 12) + bytes(10)
    jpeg = encode(".jpg")
    assert encoded_size(jpeg[:2] + segment + jpeg[2:]) == (21, 34)


@pytest.mark.parametrize("marker", [m for m in range(0xC0, 0xD0) if m not in (0xC4, 0xC8, 0xCC)])
def test_all_other_markers_of_the_table_are_frames(no_decoder, marker: int) -> None:
    jpeg = encode(".jpg")
    frame = jpeg.index(b"\xff\xc0")
    assert encoded_size(jpeg[: frame + 1] + bytes([marker]) + jpeg[frame + 2 :]) == (21, 34)


def test_a_frame_that_is_cut_behind_an_end_is_broken() -> None:
    """The last nine bytes are a frame's; of eight the size would lie beyond the payload."""
    with pytest.raises(BrokenRecordError, match="cannot be decoded"):
        encoded_size(b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xd9\x00")


def test_other_formats_are_decoded() -> None:
    assert encoded_size(encode(".bmp")) == (21, 34)


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.5, 0.99])
def test_what_is_cut_off_is_broken(suffix: str, share: float) -> None:
    payload = encode(suffix)
    with pytest.raises(BrokenRecordError, match="cannot be decoded"):
        encoded_size(payload[: int(share * len(payload))])


def test_a_header_that_leads_nowhere_is_broken() -> None:
    with pytest.raises(BrokenRecordError, match="cannot be decoded"):
        encoded_size(b"\xff\xd8\xff\xe0\xff\xff" + bytes(100))
