from __future__ import annotations

import numpy as np

from data.images.augmentation import Augmentation


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
