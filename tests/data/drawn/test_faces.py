from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import cv2
import numpy as np
import pytest

from data.drawn.faces import Person, View, render
from data.images.image_set import DrawnImages

PEOPLE, VIEWS, SHAPES = 2020981468, 2671922942, 2665906231
# Means of the quarters by color, the standard deviation, and that of neighbors' differences.
PHOTOGRAPHS = [
    [122.6, 113.8, 94.7, 120.7, 89.3, 96.9, 202.3, 159.3, 138.4, 117.6, 106.1, 113.4, 41.9, 16.8],
    [182.6, 182.1, 202.7, 135.5, 172.9, 127.9, 124.5, 159.6, 125.3, 93.8, 137.2, 111.3, 46.3, 14.7],
    [100.0, 97.6, 69.9, 184.8, 177.5, 148.5, 128.0, 126.2, 102.1, 235.4, 214.6, 178.5, 67.8, 9.4],
    [82.1, 113.4, 77.4, 82.0, 102.6, 82.0, 140.6, 128.0, 152.1, 110.1, 143.2, 131.2, 36.6, 14.4],
]  # fmt: skip


def crc(arrays: Iterable[Any]) -> int:
    """Return a checksum of numbers to six digits, which is the same on every machine."""
    total = 0
    for array in arrays:
        total = zlib.crc32(np.round(np.asarray(array, float) + 0.0, 6).tobytes(), total)
    return total


def test_a_seed_draws_the_same_face_in_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured on drawn faces is comparable while these numbers stay as they are.

    Persons and views are random numbers, which NumPy keeps as they are; lines and areas are
    fixed-point coordinates, before OpenCV draws them.
    """
    people = [Person(np.random.default_rng((0, number))) for number in range(100)]
    views = [View(np.random.default_rng((1, number))) for number in range(100)]
    assert crc(value for person in people for value in vars(person).values()) == PEOPLE
    assert crc(value for view in views for value in vars(view).values()) == VIEWS

    drawn: list[Any] = []
    for name in ("fillPoly", "polylines"):
        monkeypatch.setattr(cv2, name, lambda image, points, *rest: drawn.extend((*points, *rest)))
    for person, view in zip(people, views):
        render(person, view, (112, 96), np.random.default_rng(0))
    assert crc(drawn) == SHAPES


def test_background_and_light_are_alike_in_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means of a quarter of an image each: OpenCV rounds differently on different processors."""
    for name in ("fillPoly", "polylines"):
        monkeypatch.setattr(cv2, name, lambda *arguments: None)
    person, view = Person(np.random.default_rng(0)), View(np.random.default_rng(0))
    for number, expected in enumerate(PHOTOGRAPHS):
        image = render(person, view, (40, 48), np.random.default_rng(number)).astype(float)
        noise = np.diff(image, axis=1).std()
        found = [*image.reshape(2, 20, 2, 24, 3).mean(axis=(1, 3)).ravel(), image.std(), noise]
        assert found == pytest.approx(expected, abs=0.2)


# Mean and standard deviation of images 0 to 3, which are to be the same in every version.
@pytest.mark.parametrize(("part", "expected"), [
    ("training", [123.09, 51.36, 126.75, 52.96, 128.32, 47.83, 123.99, 50.5]),
    ("validation", [115.74, 64.54, 126.41, 54.48, 125.09, 62.51, 119.38, 60.89]),
])  # fmt: skip
def test_a_seed_draws_the_same_patterns_in_every_version(part: str, expected) -> None:
    """To a rounding of a pixel, which depends on the processor."""
    dataset = DrawnImages(part, num_classes=3, count=600, shape=(16, 24, 3), seed=4)
    found = [dataset.decoded(number)[0].astype(float) for number in range(4)]
    values = [value for image in found for value in (image.mean(), image.std())]
    assert values == pytest.approx(expected, abs=0.05)
    assert (len(dataset), dataset.num_classes) == (600, 3)
    assert [dataset.decoded(number)[1] for number in range(7)] == [0, 1, 2, 0, 1, 2, 0]
