"""Drawn images: a pattern for each class, moved, in some light, under noise."""

from __future__ import annotations

from typing import Any

import pytest

from data.drawn.patterns import DrawnImages

OPTIONS: dict[str, Any] = {"num_classes": 3, "count": 600, "shape": (16, 24, 3), "seed": 4}
# Mean and standard deviation of images 0 to 3, which are to be the same in every version.
TRAINING = [123.09, 51.36, 126.75, 52.96, 128.32, 47.83, 123.99, 50.5]
VALIDATION = [115.74, 64.54, 126.41, 54.48, 125.09, 62.51, 119.38, 60.89]


@pytest.mark.parametrize("part, expected", [("training", TRAINING), ("validation", VALIDATION)])
def test_a_seed_draws_the_same_images_in_every_version(part: str, expected) -> None:
    """To a rounding of a pixel, which depends on the processor."""
    dataset = DrawnImages(part, **OPTIONS)
    found = [dataset.decoded(number)[0].astype(float) for number in range(4)]
    values = [value for image in found for value in (image.mean(), image.std())]
    assert values == pytest.approx(expected, abs=0.05)
    assert (len(dataset), dataset.num_classes) == (600, 3)
    assert [dataset.decoded(number)[1] for number in range(7)] == [0, 1, 2, 0, 1, 2, 0]
