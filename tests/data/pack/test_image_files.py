from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from data.decoding import decode_rgb
from data.pack.image_files import ImageReader, fit
from runtime.errors import DataError


def columns(height: int, width: int) -> np.ndarray:
    """An image whose columns rise from 0 on the left to 200 on the right."""
    row = np.linspace(0, 200, width).round().astype(np.uint8)
    return np.broadcast_to(row[None, :, None], (height, width, 3)).copy()


@pytest.mark.parametrize(
    ("shape", "size", "left", "right"),
    [
        ((100, 100), (50, 50), 0, 200),
        ((100, 200), (100, 100), 50, 150),
        ((200, 100), (50, 50), 0, 200),
        ((50, 50), (100, 100), 0, 200),
        ((112, 96), (112, 112), 0, 200),
        ((100, 100), (50, 25), 50, 150),
    ],
)
def test_fit_keeps_the_center(shape, size, left: int, right: int) -> None:
    image = fit(columns(*shape), size)
    assert image.shape == (*size, 3)
    assert abs(int(image[0, 0, 0]) - left) <= 4 and abs(int(image[0, -1, 0]) - right) <= 4
    assert np.ptp(image, axis=0).max() <= 1


def write(path: Path, image: np.ndarray) -> str:
    assert cv2.imwrite(str(path), image)
    return str(path)


def test_a_resized_image_is_a_good_jpeg_and_others_are_copied(tmp_path: Path) -> None:
    image = ImageReader((10, 10), crop=True).read(write(tmp_path / "a.png", columns(20, 40)))
    assert image.size == (10, 10) and image.payload.startswith(b"\xff\xd8")
    fitted = fit(columns(20, 40), (10, 10))
    # The quality that InsightFace's packers have.
    best = cv2.imencode(".jpg", fitted[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])[1]
    assert image.payload == best.tobytes()
    assert np.abs(decode_rgb(image.payload) - fitted.astype(int)).max() <= 3
    path = write(tmp_path / "a.jpg", columns(20, 10))
    for reader in (ImageReader(), ImageReader((20, 10)), ImageReader((20, 10), True, True)):
        assert reader.read(path) == (path, Path(path).read_bytes(), (20, 10))
    # A shape may differ by rounding only.
    path = write(tmp_path / "b.png", columns(100, 101))
    assert ImageReader((50, 50)).read(path).size == (50, 50)
    path = write(tmp_path / "c.png", columns(100, 110))
    with pytest.raises(DataError, match="100 x 110 pixels, which is another shape than 50 x 50"):
        ImageReader((50, 50)).read(path)
