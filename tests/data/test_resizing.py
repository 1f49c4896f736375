from __future__ import annotations

import cv2
import numpy as np
import pytest

from data.records.recordio import BrokenRecordError
from data.resizing import bring_to

SMALL = (112, 112)


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 3), None, 0, 255, cv2.NORM_MINMAX)


def test_sizes_are_those_of_mxnet() -> None:
    """The two differ by roundings: MXNet has an OpenCV of its own."""
    mx = pytest.importorskip("mxnet")
    for size in ((250, 250), (96, 96), (113, 113), (250, 249), (249, 250), (2000, 2000)):
        pixels = smooth(*size)
        expected = mx.image.resize_short(mx.nd.array(pixels, dtype="uint8"), 112).asnumpy()
        assert expected.shape == (112, 112, 3)
        difference = np.abs(bring_to(pixels, SMALL).astype(int) - expected)
        assert difference.max() <= 1 and (difference > 0).mean() < 0.1, size


def test_images_of_other_shapes_are_refused_and_of_the_right_size_kept() -> None:
    for size, wanted in (
        ((250, 300), SMALL), (SMALL, (112, 96)), ((1, 4000), (8, 8)), ((224, 224), (112, 96)),
    ):  # fmt: skip
        with pytest.raises(BrokenRecordError, match=f"{size[0]} x {size[1]} pixels, which is an"):
            bring_to(np.zeros((*size, 3), np.uint8), wanted)
    pixels = smooth(*SMALL)
    assert bring_to(pixels, SMALL) is pixels
    for size in ((224, 192), (56, 48)):
        assert bring_to(smooth(*size), (112, 96)).shape == (112, 96, 3)
