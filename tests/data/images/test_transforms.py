from __future__ import annotations

import cv2
import numpy as np
import pytest

from data.images.transforms import (
    CHANGES_OF_FACES,
    Augmentation,
    CenterCrop,
    MiddleCrop,
    PadCropFlip,
    RandomResizedCrop,
)

NOISE = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
# Area and ratio that do not fit into 40 × 30, and ones that make a part of 10 × 10.
TOO_WIDE, SQUARE = (1.0, 1.0), (0.0, 0.5)
NOTHING = np.empty(0, np.float32)
# 40 × 30 pixels, whose color is their position.
PLACES = np.stack([*np.indices((40, 30)), np.zeros((40, 30))], axis=2).astype(np.uint8)


def changed(image: np.ndarray, name: str, strength: float, *numbers: float) -> np.ndarray:
    found = Augmentation({name: strength}).apply(image.copy(), np.array(numbers))
    assert found.dtype == np.uint8 and found.shape == image.shape
    return found


@pytest.mark.parametrize(("numbers", "gray", "color"), [
    ((0.5, 0.5, 0.5), 100, [200, 120, 40]),
    ((1.0, 0.5, 0.5), 150, [255, 180, 60]),
    ((0.5, 0.0, 0.5), 114, [164, 124, 84]),  # around the middle of the range, 127.5
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


@pytest.mark.parametrize("strength, quality, side", [(0.0, 2, 8), (0.5, 11, 24), (0.999, 20, 40)])
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


def test_each_change_has_random_numbers_of_its_own() -> None:
    order = [*CHANGES_OF_FACES, "mirror"]
    everything = Augmentation(dict.fromkeys(order, 0.5))
    whole, other = everything.draw((1, 2), 9), everything.draw((1, 3), 9)
    assert Augmentation({}).draw((1, 2), 9).shape == (9, 0)
    image, start = NOISE.copy(), 0
    for name in order:
        alone = Augmentation({name: 0.1}).draw((1, 2), 7)
        columns, start = slice(start, start + alone.shape[1]), start + alone.shape[1]
        assert alone.min() >= 0 and alone.max() < 1
        np.testing.assert_array_equal(alone, whole[:7, columns])
        assert (other[:, columns] != whole[:, columns]).all()
        image = changed(image, name, 0.5, *whole[4, columns])
    assert start == whole.shape[1] == len({*whole[0]})
    np.testing.assert_array_equal(everything.apply(NOISE.copy(), whole[4]), image)


def draws(first=SQUARE, second=SQUARE, rest=SQUARE, *, place=(0.0, 0.0, 0.9), lighting=(0, 0, 0)):
    shapes = [*first, *second, *(rest * 8)]
    return np.array([*shapes, *place, 0.5, 0.5, 0.5, *lighting], np.float32)


def plain(size: int, lighting: float = 0.0) -> RandomResizedCrop:
    return RandomResizedCrop(size, color_jitter=0.0, lighting=lighting)


@pytest.mark.parametrize(("row", "column", "top", "left"), [
    (0.0, 0.0, 0, 0), (0.999, 0.0, 30, 0), (0.0, 0.999, 0, 20), (0.5, 0.5, 15, 10)
])  # fmt: skip
def test_a_part_is_cut_where_it_was_drawn(row, column, top, left) -> None:
    """0.08 · 40 · 30 = 96 pixels in a square: 10 × 10, which at size 10 is not resized."""
    cut = PLACES[top : top + 10, left : left + 10]
    for flip, expected in ((0.5, cut), (0.49, cut[:, ::-1])):
        found = plain(10).apply(PLACES.copy(), draws(place=(row, column, flip)))
        np.testing.assert_array_equal(found, expected)


def test_parts_have_the_drawn_area_and_ratio() -> None:
    """In the lower right corner of the image: the color of the first pixel is where it begins."""
    for shapes, height, width in (
        ([(0.0, 0.0)], 11, 8),  # 96 pixels at 3:4 are 11.3 × 8.5
        ([(0.0, 1.0)], 8, 11),  # at 4:3 8.5 × 11.3
        ([(0.5, 0.5)], 25, 25),  # 0.08 + 0.92 / 2 = 0.54 of 1200 pixels
        ([(1.0, 0.0)], 40, 30),  # all of it at 3:4 is the image itself
        ([TOO_WIDE, (0.0, 0.0)], 11, 8),  # the first that fits is taken
        ([TOO_WIDE, TOO_WIDE, TOO_WIDE], 40, 30),  # none of ten fits
    ):
        found = plain(400).apply(PLACES, draws(*shapes, place=(0.999, 0.999, 0.9)))
        assert found[0, 0, :2].tolist() == [40 - height, 30 - width]
        assert found[-1, -1, :2].tolist() == [39, 29]


def test_light_moves_colors_along_the_axes_of_imagenet() -> None:
    gray = np.full((12, 12, 3), 100, np.uint8)
    for strength, lighting, expected in (
        (1.0, (1, 0, 0), [69, 68, 68]),  # 55.46 · (-0.5675, -0.5808, -0.5836)
        (1.0, (0, 25, 0), [186, 99, 17]),  # 119.85 · (0.7192, -0.0045, -0.6948)
        (1.0, (0, 0, 40), [118, 63, 119]),  # 45.92 · (0.4009, -0.8140, 0.4203)
        (0.5, (1, 0, 0), [84, 84, 84]),
    ):
        found = plain(4, lighting=strength).apply(gray.copy(), draws(lighting=lighting))
        assert found[0, 0].tolist() == expected
    # Contrast and saturation are tested with Augmentation.
    for draw, level in ((1.0, 140), (0.0, 60)):
        numbers = draws()
        numbers[-6] = draw
        found = RandomResizedCrop(4, lighting=0.0).apply(gray, numbers)
        assert found[0, 0].tolist() == [level] * 3
    numbers = RandomResizedCrop(4).draw((0,), 500)
    assert numbers.shape == (500, 10 * 2 + 3 + 3 + 3) and numbers.dtype == np.float32
    assert numbers[:, :26].min() >= 0 > numbers[:, 26:].min()
    assert RandomResizedCrop(4).lighting == 0.1, "as in Horovod's example for MXNet"


def test_shrinking_averages_and_growing_interpolates() -> None:
    stripes = np.zeros((16, 16, 3), np.uint8)
    stripes[::2] = 200
    shrunk = CenterCrop(7).apply(np.repeat(stripes, 2, axis=1), NOTHING)
    assert shrunk.min() == shrunk.max() == 100
    grown = CenterCrop(28).apply(np.repeat(stripes, 3, axis=1), NOTHING)
    assert np.unique(grown).tolist() == [50, 150], "a quarter of the way to the next pixel"
    # Of an image that is not square, 120 rows become 32, of which 9 to 22 are kept: 3.75 rows each.
    tall = np.repeat(np.arange(120, dtype=np.uint8)[:, None, None], 60, axis=1).repeat(3, axis=2)
    expected = (np.arange(9, 23) + 0.5) * 3.75 - 0.5
    for image, kept in ((tall, np.s_[:, 5, 0]), (tall.transpose(1, 0, 2), np.s_[5, :, 0])):
        line = CenterCrop(14).apply(image, NOTHING)[kept].astype(float)
        assert line == pytest.approx(expected, abs=0.6)


def test_pad_crop_flip_moves_an_image_and_fills_with_black() -> None:
    image = np.arange(1, 193, dtype=np.uint8).reshape(8, 8, 3)

    def moved(*draws: float, **options: int) -> np.ndarray:
        transform = PadCropFlip(**{"padding": 2, **options})
        return transform.apply(image.copy(), np.array(draws, np.float32))

    np.testing.assert_array_equal(moved(0.5, 0.5, 0.9), image)
    np.testing.assert_array_equal(moved(0.5, 0.5, 0.1), image[:, ::-1])
    corner = np.pad(image[:6, 2:], ((2, 0), (0, 2), (0, 0)))
    np.testing.assert_array_equal(moved(0.0, 0.999, 0.9), corner)
    draws = PadCropFlip(2).draw((0,), 400).tolist()
    assert len({tuple(np.argwhere(moved(*each)[..., 0])[0]) for each in draws}) == 3 * 3
    for place, start in ((0.0, 0), (0.34, 1), (0.999, 2)):
        cut = moved(place, 0.0, 0.9, padding=0, size=6)
        np.testing.assert_array_equal(cut, image[start : start + 6, :6])
    mirrored = moved(0.0, 0.999, 0.1, padding=0, size=6)
    np.testing.assert_array_equal(mirrored, image[:6, 2:][:, ::-1])
    (drawn,) = MiddleCrop(4).draw((1,), 1)
    np.testing.assert_array_equal(MiddleCrop(4).apply(image[:7], drawn), image[1:5, 2:6])
