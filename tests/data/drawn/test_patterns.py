"""Drawn images: a pattern for each class, moved, in some light, under noise."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
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


def test_an_image_is_its_pattern_moved_by_an_eighth_at_most_in_some_light_under_noise() -> None:
    dataset = DrawnImages("training", **OPTIONS)
    pattern = dataset._patterns[1]
    assert pattern.std() == pytest.approx(40, rel=0.4)
    moved: dict[Any, Any] = {
        (down, right): np.roll(pattern, (down, right), (0, 1)).ravel()
        for down in range(-3, 4)
        for right in range(-4, 5)
    }
    shifts: Counter[tuple[int, int]] = Counter()
    lights, rests = [], []
    for number in range(1, 600, 3):
        centered = dataset.decoded(number)[0].astype(float).ravel() - 127.5
        products: dict[Any, Any] = {shift: values @ centered for shift, values in moved.items()}
        shift = max(products, key=products.__getitem__)
        shifts[shift] += 1
        lights.append(products[shift] / (moved[shift] @ moved[shift]))
        rests.append((centered - lights[-1] * moved[shift]).std())
    assert {down for down, _ in shifts} == set(range(-2, 3))
    assert {right for _, right in shifts} == set(range(-3, 4))
    assert max(shifts.values()) < 20
    assert np.mean(lights) == pytest.approx(1, abs=0.06)
    assert np.std(lights) == pytest.approx(0.2, abs=0.05)
    # A little less than 40, because pixels end at 0 and 255.
    assert 35 < np.mean(rests) < 40
