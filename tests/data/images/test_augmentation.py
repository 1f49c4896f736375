from __future__ import annotations

from dataclasses import fields

import cv2
import numpy as np
import pytest

from data.images.augmentation import Augmentation

NOISE = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)


def changed(image: np.ndarray, name: str, strength: float, *numbers: float) -> np.ndarray:
    """A copy of an image after one change, whose random numbers are given."""
    draws = {name: np.array([[np.nan] * len(numbers), numbers])}
    found = Augmentation(**{name: strength}).apply(image.copy(), draws, 1)
    assert found.dtype == np.uint8 and found.shape == image.shape
    return found


@pytest.mark.parametrize(("numbers", "gray", "color"), [
    ((0.5, 0.5, 0.5), 100, [200, 120, 40]),
    ((1.0, 0.5, 0.5), 150, [255, 180, 60]),
    # Contrast stretches around the middle of the range, 127.5.
    ((0.5, 0.0, 0.5), 114, [164, 124, 84]),
    # Saturation moves colors from or to their gray: 0.299 * 200 + 0.587 * 120 + 0.114 * 40.
    ((0.5, 0.5, 0.0), 100, [167, 127, 87]),
])  # fmt: skip
def test_each_number_of_the_jitter_changes_its_property(numbers, gray, color) -> None:
    colors = np.array([[[100, 100, 100], [200, 120, 40]]], np.uint8)
    found = changed(colors, "color_jitter", 0.5, *numbers)
    assert np.abs(found - np.array([[[gray] * 3, color]])).max() <= 1


@pytest.mark.parametrize(("row", "column", "rows", "columns"), [
    (0.5, 0.5, (12, 20), (18, 30)), (0.0, 1.0, (0, 4), (42, 48)), (1.0, 0.0, (28, 32), (0, 6))
])  # fmt: skip
def test_cutout_is_a_gray_part_that_may_leave_the_image(row, column, rows, columns) -> None:
    """Here a quarter of each side."""
    found = changed(np.zeros((32, 48, 3), np.uint8), "cutout", 0.25, row, column)
    expected = np.zeros_like(found)
    expected[slice(*rows), slice(*columns)] = 128
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("strength", "quality", "side"), [(0.0, 2, 8), (0.5, 11, 24), (0.999, 20, 40)]
)
def test_losses_of_quality(strength: float, quality: int, side: int) -> None:
    found = changed(NOISE, "jpeg_compression", 0.5, 0.49, strength)
    _, jpeg = cv2.imencode(".jpg", NOISE[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    np.testing.assert_array_equal(found, cv2.imdecode(jpeg, cv2.IMREAD_COLOR)[..., ::-1])
    small = cv2.resize(NOISE, (side, side), interpolation=cv2.INTER_AREA)
    expected = cv2.resize(small, (40, 40), interpolation=cv2.INTER_LINEAR)
    found = changed(NOISE, "low_resolution", 0.5, 0.49, strength)
    np.testing.assert_array_equal(found, expected)
    assert changed(NOISE[:2, :2], "low_resolution", 0.5, 0.49, 0.0).std(axis=(0, 1)).max() == 0
    luma = NOISE.astype(float) @ [0.299, 0.587, 0.114]
    assert np.abs(changed(NOISE, "gray", 0.5, 0.49) - luma[..., None]).max() <= 0.6
    np.testing.assert_array_equal(changed(NOISE, "mirror", 0.5, 0.49), NOISE[:, ::-1])


@pytest.mark.parametrize(("strength", "sigma"), [(0.0, 0.5), (0.5, 1.25), (1.0, 2.0)])
def test_blur_is_a_gaussian(strength: float, sigma: float) -> None:
    """The width of what becomes of a line, by its second moment."""
    line = np.zeros((31, 31, 3), np.uint8)
    line[:, 15] = 255
    profile = changed(line, "blur", 0.5, 0.49, strength)[15, :, 1].astype(float)
    squares = (np.arange(31) - 15) ** 2
    gaussian = np.exp(-squares / (2 * sigma**2))
    assert profile.sum() == pytest.approx(255, rel=0.03)
    variances = [np.average(squares, weights=weights) for weights in (profile, gaussian)]
    assert variances[0] == pytest.approx(variances[1], rel=0.1)


@pytest.mark.parametrize("name", ["blur", "low_resolution", "jpeg_compression", "gray", "mirror"])
def test_a_share_of_the_images_is_affected(name: str) -> None:
    """0.3 of 2,000 up to three standard deviations, and none at the share itself."""
    change, image = Augmentation(**{name: 0.3}), NOISE[:12, :12]
    draws = change.draw((7, 0), 0, 2000)
    count = sum((change.apply(image.copy(), draws, row) != image).any() for row in range(2000))
    assert abs(count / 2000 - 0.3) < 0.031
    numbers = [0.3] * draws[name].shape[1]
    np.testing.assert_array_equal(changed(image, name, 0.3, *numbers), image)


def test_each_change_has_random_numbers_of_its_own() -> None:
    """By seed, row and name, whatever else is on; a rank draws those of its rows."""
    order = [field.name for field in fields(Augmentation)]
    everything = Augmentation(**dict.fromkeys(order, 0.5))
    whole = everything.draw((1, 2), 0, 9)
    assert list(whole) == order and order[-1] == "mirror" and not Augmentation().draw((1, 2), 0, 9)
    image = NOISE.copy()
    for name, numbers in whole.items():
        assert numbers.min() >= 0 and numbers.max() < 1
        alone = Augmentation(**{name: 0.1}).draw((1, 2), 3, 4)
        assert list(alone) == [name]
        np.testing.assert_array_equal(alone[name], numbers[3:7])
        assert (everything.draw((1, 3), 0, 9)[name] != numbers).all()
        image = changed(image, name, 0.5, *numbers[4])
    assert len({numbers[0, 0] for numbers in whole.values()}) == len(order)
    # One after the other.
    np.testing.assert_array_equal(everything.apply(NOISE.copy(), whole, 4), image)
