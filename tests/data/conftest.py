"""Small record sets, and images of known pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.records.writer import RecordWriter

ImageMaker = Callable[[int], bytes]


@pytest.fixture(scope="session")
def make_image() -> ImageMaker:
    """Return a function that encodes a PNG of the one color (number, 7, 255 - number)."""

    def make(number: int, size: tuple[int, int] = (16, 16)) -> bytes:
        rgb = np.full((*size, 3), (number % 256, 7, 255 - number % 256), np.uint8)
        done, encoded = cv2.imencode(".png", rgb[..., ::-1])
        assert done
        return encoded.tobytes()

    return make


@pytest.fixture
def write_set(tmp_path: Path, make_image: ImageMaker) -> Callable[[Sequence[int]], Path]:
    """Return a function that packs a set with the given number of images per identity."""

    def write(counts: Sequence[int], name: str = "faces") -> Path:
        number = 0
        with RecordWriter(tmp_path / name, image_size=(16, 16)) as writer:
            for label, count in enumerate(counts):
                for _ in range(count):
                    writer.write(make_image(number), label)
                    number += 1
        return tmp_path / name

    return write
