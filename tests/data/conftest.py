"""Small record sets, images of known pixels, and the commands as functions."""

from __future__ import annotations

import sys

import cv2
import numpy as np
import pytest

from tests.support.sets import pack_set


@pytest.fixture(scope="session")
def make_image():
    """Return a function that encodes a PNG of the one color (number, 7, 255 - number)."""

    def make(number: int, size: tuple[int, int] = (16, 16)) -> bytes:
        rgb = np.full((*size, 3), (number % 256, 7, 255 - number % 256), np.uint8)
        return cv2.imencode(".png", rgb[..., ::-1])[1].tobytes()

    return make


@pytest.fixture
def write_set(tmp_path, make_image):
    """Return a function that packs a set with the given number of images per identity."""

    def write(counts, name="faces"):
        labels = np.repeat(np.arange(len(counts)), counts).tolist()
        return pack_set(tmp_path / name, map(make_image, range(len(labels))), labels)

    return write


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs the main of a command with arguments."""

    def command(main, *arguments):
        monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
        return main()

    return command
