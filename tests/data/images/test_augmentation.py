"""Random changes of faces, against numbers computed by hand."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from data.images import augmentation
from data.images.augmentation import Augmentation
from tests.support.augmented import changed_by, drawn_for


def test_each_draw_changes_its_property() -> None:
    jitter = Augmentation(color_jitter=0.5)
    colors = np.array([[[100, 100, 100], [200, 120, 40]]], np.uint8)

    def changed(*draws: float) -> list[list[int]]:
        return changed_by(jitter, colors, np.array([*draws, 0.5, 0.5], np.float32))[0].tolist()

    assert changed(0.5, 0.5, 0.5) == colors[0].tolist()
    assert changed(1.0, 0.5, 0.5) == [[150, 150, 150], [255, 180, 60]]
    # Contrast stretches around the middle of the range, 127.5.
    assert changed(0.5, 0.0, 0.5) == [[114, 114, 114], [164, 124, 84]]
    # Saturation moves colors from or to their gray: 0.299 * 200 + 0.587 * 120 + 0.114 * 40 = 134.8.
    assert changed(0.5, 0.5, 0.0) == [[100, 100, 100], [167, 127, 87]]


def test_cutout_is_a_gray_square_that_may_leave_the_image() -> None:
    cutout = Augmentation(cutout=0.25)
    for row, column, pixels in [(0.5, 0.5, 64), (0.0, 0.0, 16), (0.999, 0.5, 32)]:
        image = np.zeros((32, 32, 3), np.uint8)
        image = changed_by(cutout, image, np.array([0, 0, 0, row, column], np.float32))
        assert set(np.unique(image)) == {0, 128}
        assert (image == 128).all(axis=2).sum() == pixels
    assert (image[28:, 12:20] == 128).all()


def test_compression_has_a_share_of_the_images_and_a_quality() -> None:
    rng = np.random.default_rng(0)
    # A smooth image, of a color that would suffer if red and blue were exchanged.
    image = np.full((32, 32, 3), (200, 80, 20), np.uint8)
    image[:16] += 30
    noisy = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    compression = Augmentation(jpeg_compression=0.5)
    best, worst = ([0, 0, 0, 0, 0, 0.49, draw] for draw in (0.999, 0.0))
    found = changed_by(compression, image, np.array(best, np.float32))
    assert found.flags.c_contiguous and 0 < np.abs(found.astype(int) - image).max() < 12
    lost = [
        np.abs(
            changed_by(compression, noisy, np.array(draw, np.float32)).astype(int) - noisy
        ).mean()
        for draw in (best, worst)
    ]
    assert 20 < lost[0] < lost[1]
    off = np.array([0, 0, 0, 0, 0, 0.5, 0], np.float32)
    assert (changed_by(compression, noisy, off) == noisy).all()


def test_qualities_are_two_to_twenty(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def compressed(image, quality: int):
        seen.append(quality)
        return image

    monkeypatch.setattr(augmentation, "_compressed", compressed)
    compression = Augmentation(jpeg_compression=1.0)
    for draw in drawn_for(compression, np.random.default_rng(0), 2000):
        changed_by(compression, np.zeros((2, 2, 3), np.uint8), draw)
    assert (min(seen), max(seen), len(set(seen)), len(seen)) == (2, 20, 19, 2000)


LOSSES = ("jpeg_compression", "low_resolution", "blur", "gray")


def test_a_loss_that_is_off_draws_nothing() -> None:
    """So that runs without it draw what they drew before there was any."""
    widths = (5, 2, 2, 2, 1)
    for count in range(len(LOSSES) + 1):
        shares = dict.fromkeys(LOSSES[:count], 0.5)
        assert Augmentation(0.2, 0.2, **shares).widths == widths[: count + 1]
    assert Augmentation(blur=0.1).widths == (5, 2)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_share_of_the_images_is_affected(loss: str) -> None:
    """Whatever else is on; 0.3 of 2,000 up to three standard deviations."""
    image = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    for others in ((), LOSSES):
        change = Augmentation(**{**dict.fromkeys(others, 1e-9), loss: 0.3})
        draws = drawn_for(change, np.random.default_rng(1), 2000)
        changed = [(changed_by(change, image, draw) != image).any() for draw in draws]
        assert abs(np.mean(changed) - 0.3) < 0.031


def with_loss(name: str, strength: float, image: np.ndarray) -> np.ndarray:
    """An image with one loss of this strength; the other two have draws that affect nothing."""
    change = Augmentation(**{**dict.fromkeys(LOSSES[:3], 0.5), name: 0.5})
    draws = np.tile(np.array([0.9, 0.2], np.float32), 3)
    draws[2 * LOSSES.index(name) :][:2] = 0.49, strength
    found = changed_by(change, image, np.concatenate([np.zeros(5, np.float32), draws]))
    alone = np.array([0, 0, 0, 0, 0, 0.49, strength], np.float32)
    np.testing.assert_array_equal(found, changed_by(Augmentation(**{name: 0.5}), image, alone))
    return found


@pytest.mark.parametrize(("strength", "side"), [(0.0, 8), (0.5, 24), (0.999, 40)])
def test_low_resolution_is_that_of_fewer_pixels(strength: float, side: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    found = with_loss("low_resolution", strength, image)
    small = cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA)
    expected = cv2.resize(small, (40, 40), interpolation=cv2.INTER_LINEAR)
    assert found.dtype == np.uint8 and found.flags.c_contiguous
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("strength", "sigma"), [(0.0, 0.5), (0.5, 1.25), (1.0, 2.0)])
def test_blur_is_a_gaussian(strength: float, sigma: float) -> None:
    """The width of what becomes of a point, by its second moment."""
    point, line = np.zeros((2, 31, 31, 3), np.uint8)
    point[15, 15] = line[:, 15] = 255
    profile = with_loss("blur", strength, line)[15, :, 1].astype(float)
    places = np.arange(31) - 15
    gaussian = np.exp(-(places**2) / (2 * sigma**2))
    assert profile.sum() == pytest.approx(255, rel=0.03)
    variance = (profile * places**2).sum() / profile.sum()
    assert variance == pytest.approx((gaussian * places**2).sum() / gaussian.sum(), rel=0.1)
    blurred = with_loss("blur", strength, point)
    assert (blurred[..., 0] == blurred[..., 2]).all() and (blurred[15] == blurred[:, 15]).all()


def test_gray_images_have_the_luma_of_the_colors() -> None:
    image = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    off, on = (np.array([0, 0, 0, 0, 0, draw], np.float32) for draw in (0.5, 0.49))
    found = changed_by(Augmentation(gray=0.5), image, on)
    luma = image.astype(float) @ [0.299, 0.587, 0.114]
    assert np.abs(found - luma[..., None]).max() <= 0.6
    np.testing.assert_array_equal(changed_by(Augmentation(gray=0.5), image, off), image)
