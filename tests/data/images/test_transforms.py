"""The changes of images, against numbers computed by hand."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from data.images import transforms
from data.images.transforms import (
    Augmentation,
    CenterCrop,
    MiddleCrop,
    PadCropFlip,
    RandomResizedCrop,
)

# Area and ratio that do not fit into 40 × 30, and ones that make a part of 10 × 10.
TOO_WIDE, SQUARE = (1.0, 1.0), (0.0, 0.5)


def draws(first=SQUARE, second=SQUARE, rest=SQUARE, place=(0.0, 0.0, 0.9), lighting=(0, 0, 0)):
    shapes = [*first, *second, *(rest * 8)]
    return np.array([*shapes, *place, 0.5, 0.5, 0.5, *lighting], np.float32)


def plain(size: int, lighting: float = 0.0) -> RandomResizedCrop:
    return RandomResizedCrop(size, color_jitter=0.0, lighting=lighting)


@pytest.fixture
def image() -> np.ndarray:
    """40 × 30 pixels, whose color is their position."""
    image = np.zeros((40, 30, 3), np.uint8)
    image[..., 0], image[..., 1] = np.arange(40)[:, None], np.arange(30)
    return image


@pytest.mark.parametrize(
    "place, top, left",
    [((0.0, 0.0), 0, 0), ((0.999, 0.0), 30, 0), ((0.0, 0.999), 0, 20), ((0.5, 0.5), 15, 10)],
)
def test_a_part_is_cut_where_it_was_drawn(image, place, top, left) -> None:
    """0.08 · 40 · 30 = 96 pixels in a square: 10 × 10, which at size 10 is not resized."""
    cut = image[top : top + 10, left : left + 10]
    found = plain(10).apply(image.copy(), draws(place=(*place, 0.5)))
    np.testing.assert_array_equal(found, cut)
    mirrored = plain(10).apply(image.copy(), draws(place=(*place, 0.49)))
    np.testing.assert_array_equal(mirrored, cut[:, ::-1])


@pytest.mark.parametrize(
    "shape, height, width",
    [
        # 96 pixels at 3:4 are 11.3 × 8.5, at 4:3 8.5 × 11.3.
        ((0.0, 0.0), 11, 8),
        ((0.0, 1.0), 8, 11),
        # 0.08 + 0.92 / 2 = 0.54 of 1200 pixels.
        ((0.5, 0.5), 25, 25),
        # All of it at 3:4 is the image itself.
        ((1.0, 0.0), 40, 30),
    ],
)
def test_parts_have_the_drawn_area_and_ratio(image, shape, height, width) -> None:
    """In the lower right corner of the image: the color of the first pixel is where it begins."""
    place = (0.999, 0.999, 0.9)
    found = plain(400).apply(image, draws(shape, place=place))
    assert found[0, 0, :2].tolist() == [40 - height, 30 - width]
    assert found[-1, -1, :2].tolist() == [39, 29]


def test_the_first_part_that_fits_is_taken(image) -> None:
    found = plain(400).apply(image, draws(TOO_WIDE, (0.5, 0.5)))
    assert found[-1, -1, :2].tolist() == [24, 24]
    found = plain(400).apply(image, draws(TOO_WIDE, TOO_WIDE, TOO_WIDE))
    assert found[-1, -1, :2].tolist() == [39, 29]


def test_light_moves_colors_along_the_axes_of_imagenet() -> None:
    gray = np.full((12, 12, 3), 100, np.uint8)
    for lighting, expected in (
        ((1, 0, 0), [69, 68, 68]),  # 55.46 · (-0.5675, -0.5808, -0.5836)
        ((0, 1, 0), [103, 100, 97]),  # 4.794 · (0.7192, -0.0045, -0.6948)
        ((0, 0, 2), [101, 98, 101]),  # 2 · 1.148 · (0.4009, -0.8140, 0.4203)
    ):
        found = plain(4, lighting=1.0).apply(gray.copy(), draws(lighting=lighting))
        assert found[0, 0].tolist() == expected
    half = plain(4, lighting=0.5).apply(gray.copy(), draws(lighting=(1, 0, 0)))
    assert half[0, 0].tolist() == [84, 84, 84]


def test_jitter_changes_the_brightness_by_its_size_at_most() -> None:
    gray = np.full((12, 12, 3), 100, np.uint8)
    drawn = draws()
    drawn[-6] = 1.0
    assert RandomResizedCrop(4, lighting=0.0).apply(gray, drawn)[0, 0].tolist() == [140] * 3
    drawn[-6] = 0.0
    assert RandomResizedCrop(4, lighting=0.0).apply(gray, drawn)[0, 0].tolist() == [60] * 3


def test_draws_are_uniform_except_those_of_the_light() -> None:
    drawn = RandomResizedCrop(4).draw(np.random.default_rng(0), 500)
    assert drawn.shape == (500, 10 * 2 + 3 + 3 + 3) and drawn.dtype == np.float32
    uniform, normal = drawn[:, :26], drawn[:, 26:]
    assert uniform.min() >= 0 and uniform.max() < 1
    assert uniform.mean(axis=0) == pytest.approx(0.5, abs=0.06)
    assert normal.std(axis=0) == pytest.approx(1.0, abs=0.15) and normal.min() < -2
    assert RandomResizedCrop(4).lighting == 0.1, "as in Horovod's example for MXNet"


def test_shrinking_averages_and_growing_interpolates() -> None:
    stripes = np.zeros((16, 16, 3), np.uint8)
    stripes[::2] = 200
    shrunk = CenterCrop(7).apply(np.repeat(stripes, 2, axis=1), np.empty(0, np.float32))
    assert shrunk.min() == shrunk.max() == 100
    grown = CenterCrop(28).apply(stripes, np.empty(0, np.float32))
    assert np.unique(grown).tolist() == [50, 150], "a quarter of the way to the next pixel"


def test_the_middle_of_an_image_that_is_not_square() -> None:
    image = np.repeat(np.arange(120, dtype=np.uint8)[:, None, None], 60, axis=1).repeat(3, axis=2)
    for turned, axis in ((image, 0), (image.transpose(1, 0, 2), 1)):
        cut = CenterCrop(14).apply(turned, np.empty(0, np.float32))
        line = cut[:, 5, 0] if axis == 0 else cut[5, :, 0]
        # 120 rows become 32, of which 9 to 22 are kept: 3.75 rows each.
        assert line.astype(float) == pytest.approx((np.arange(9, 23) + 0.5) * 3.75 - 0.5, abs=0.6)


def test_a_part_without_any_pixel_is_drawn_again() -> None:
    # A quarter of one pixel at 3:4 is a line of 1 x 0.
    tiny = np.full((1, 1, 3), 77, np.uint8)
    found = plain(8).apply(tiny, draws(((0.25 - 0.08) / 0.92, 0.0), rest=(1.0, 0.5)))
    assert found.shape == (8, 8, 3) and (found == 77).all()


def test_the_middle_of_the_range_changes_no_color() -> None:
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    draws = np.full(5, 0.5, np.float32)
    assert (Augmentation(color_jitter=0.4).apply(image.copy(), draws) == image).all()


def test_each_draw_changes_its_property() -> None:
    jitter = Augmentation(color_jitter=0.5)
    colors = np.array([[[100, 100, 100], [200, 120, 40]]], np.uint8)

    def changed(*draws: float) -> np.ndarray:
        return jitter.apply(colors.copy(), np.array([*draws, 0.5, 0.5], np.float32))[0]

    assert changed(1.0, 0.5, 0.5).tolist() == [[150, 150, 150], [255, 180, 60]]
    # Contrast stretches around the middle of the range, 127.5.
    assert changed(0.5, 0.0, 0.5).tolist() == [[114, 114, 114], [164, 124, 84]]
    # Saturation moves colors from or to their gray: 0.299 * 200 + 0.587 * 120 + 0.114 * 40 = 134.8.
    assert changed(0.5, 0.5, 0.0).tolist() == [[100, 100, 100], [167, 127, 87]]


def test_cutout_is_a_gray_square_that_may_leave_the_image() -> None:
    cutout = Augmentation(cutout=0.25)
    for row, column, pixels in [(0.5, 0.5, 64), (0.0, 0.0, 16), (0.999, 0.5, 32)]:
        image = np.zeros((32, 32, 3), np.uint8)
        image = cutout.apply(image, np.array([0, 0, 0, row, column], np.float32))
        assert set(np.unique(image)) == {0, 128}
        assert (image == 128).all(axis=2).sum() == pixels
    assert (image[28:, 12:20] == 128).all()


def test_draws_depend_on_the_generator_alone() -> None:
    augmentation = Augmentation(0.2, 0.2)
    draws = [augmentation.draw(np.random.default_rng(seed), 8) for seed in (1, 1, 2)]
    assert draws[0].shape == (8, 5)
    assert (draws[0] == draws[1]).all() and (draws[0] != draws[2]).any()


def test_compression_has_a_share_of_the_images_and_a_quality() -> None:
    rng = np.random.default_rng(0)
    # A smooth image, of a color that would suffer if red and blue were exchanged.
    image = np.full((32, 32, 3), (200, 80, 20), np.uint8)
    image[:16] += 30
    noisy = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    compression = Augmentation(jpeg_compression=0.5)
    best, worst = ([0, 0, 0, 0, 0, 0.49, draw] for draw in (0.999, 0.0))
    found = compression.apply(image, np.array(best, np.float32))
    assert found.flags.c_contiguous and 0 < np.abs(found.astype(int) - image).max() < 12
    lost = [
        np.abs(compression.apply(noisy, np.array(draw, np.float32)).astype(int) - noisy).mean()
        for draw in (best, worst)
    ]
    assert 20 < lost[0] < lost[1]
    off = np.array([0, 0, 0, 0, 0, 0.5, 0], np.float32)
    assert compression.apply(noisy, off) is noisy


def test_qualities_are_two_to_twenty(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def compressed(image, quality: int):
        seen.append(quality)
        return image

    monkeypatch.setattr(transforms, "_compressed", compressed)
    compression = Augmentation(jpeg_compression=1.0)
    for draw in compression.draw(np.random.default_rng(0), 2000):
        compression.apply(np.zeros((2, 2, 3), np.uint8), draw)
    assert (min(seen), max(seen), len(set(seen)), len(seen)) == (2, 20, 19, 2000)


def test_compression_leaves_other_draws_as_they_are() -> None:
    plain, more = (
        Augmentation(0.2, 0.2, share).draw(np.random.default_rng(4), 6) for share in (0.0, 0.5)
    )
    assert (plain.shape, more.shape) == ((6, 5), (6, 7))
    assert (more[:, :5] == plain).all()


LOSSES = ("jpeg_compression", "low_resolution", "blur", "gray")


def test_a_loss_that_is_off_draws_nothing() -> None:
    """So that runs without it draw what they drew before there was any."""
    plain = Augmentation(0.2, 0.2).draw(np.random.default_rng(4), 6)
    seen: list[np.ndarray] = []
    for number in range(len(LOSSES)):
        shares = dict.fromkeys(LOSSES[: number + 1], 0.5)
        draws = Augmentation(0.2, 0.2, **shares).draw(np.random.default_rng(4), 6)
        before = seen[-1] if seen else plain
        assert (draws[:, : before.shape[1]] == before).all()
        seen.append(draws)
    assert [draws.shape[1] for draws in seen] == [7, 9, 11, 12]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_share_of_the_images_is_affected(loss: str) -> None:
    """Whatever else is on; 0.3 of 2,000 up to three standard deviations."""
    image = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    for others in ((), LOSSES):
        shares = {**dict.fromkeys(others, 1e-9), loss: 0.3}
        change = Augmentation(**shares)
        changed = [
            (change.apply(image.copy(), draw) != image).any()
            for draw in change.draw(np.random.default_rng(1), 2000)
        ]
        assert abs(np.mean(changed) - 0.3) < 0.031


def loss_of(name: str, strength: float) -> tuple[Augmentation, np.ndarray]:
    """An augmentation with one loss, and draws of this strength."""
    return Augmentation(**{name: 0.5}), np.array([0, 0, 0, 0, 0, 0.49, strength], np.float32)


@pytest.mark.parametrize(("strength", "side"), [(0.0, 8), (0.5, 24), (0.999, 40)])
def test_low_resolution_is_that_of_fewer_pixels(strength: float, side: int) -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
    change, draws = loss_of("low_resolution", strength)
    found = change.apply(image.copy(), draws)
    small = cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA)
    expected = cv2.resize(small, (40, 40), interpolation=cv2.INTER_LINEAR)
    assert found.dtype == np.uint8 and found.flags.c_contiguous
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("strength", "sigma"), [(0.0, 0.5), (0.5, 1.25), (1.0, 2.0)])
def test_blur_is_a_gaussian(strength: float, sigma: float) -> None:
    """The width of what becomes of a point, by its second moment."""
    image = np.zeros((31, 31, 3), np.uint8)
    image[15, 15] = 255
    wide = np.full((31, 31, 3), 0, np.uint8)
    wide[:, 15] = 255
    change, draws = loss_of("blur", strength)
    profile = change.apply(wide.copy(), draws)[15, :, 1].astype(float)
    places = np.arange(31) - 15
    gaussian = np.exp(-(places**2) / (2 * sigma**2))
    assert profile.sum() == pytest.approx(255, rel=0.03)
    variance = (profile * places**2).sum() / profile.sum()
    assert variance == pytest.approx((gaussian * places**2).sum() / gaussian.sum(), rel=0.1)
    point = change.apply(image.copy(), draws).astype(float)
    assert (point[..., 0] == point[..., 2]).all() and (point[15] == point[:, 15]).all()


def test_gray_images_have_the_luma_of_the_colors() -> None:
    image = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    change, _ = loss_of("gray", 0)
    found = change.apply(image.copy(), np.array([0, 0, 0, 0, 0, 0.49], np.float32))
    luma = image.astype(float) @ [0.299, 0.587, 0.114]
    assert np.abs(found - luma[..., None]).max() <= 0.6
    assert change.apply(image, np.array([0, 0, 0, 0, 0, 0.5], np.float32)) is image


def test_smaller_crops_are_cut_out_of_the_image_without_a_border() -> None:
    image = np.arange(6 * 6 * 3, dtype=np.uint8).reshape(6, 6, 3)
    transform = PadCropFlip(padding=0, size=4)
    for place, start in ((0.0, 0), (0.34, 1), (0.999, 2)):
        cut = transform.apply(image.copy(), np.array([place, 0.0, 0.9], np.float32))
        np.testing.assert_array_equal(cut, image[start : start + 4, :4])
    mirrored = transform.apply(image.copy(), np.array([0.0, 0.999, 0.1], np.float32))
    np.testing.assert_array_equal(mirrored, image[:4, 2:][:, ::-1])


def test_the_middle_is_cut_out_unscaled() -> None:
    image = np.arange(7 * 6 * 3, dtype=np.uint8).reshape(7, 6, 3)
    transform = MiddleCrop(4)
    (draws,) = transform.draw(np.random.default_rng(1), 1)
    np.testing.assert_array_equal(transform.apply(image, draws), image[1:5, 1:5])
