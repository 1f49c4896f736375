"""Colors of several images at once, against NumPy's products and OpenCV's."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.images import colors
from data.images.augmentation import Augmentation
from tests.support.augmented import changed_by, drawn_for

NOTHING = np.zeros((1, 2, 2), np.int64)


@given(
    st.integers(1, 5),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.floats(0, 1),
    st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_colors_are_products_rounded_and_cut_off(count, size, strength, seed) -> None:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (5, *size, 3), np.uint8)
    matrices = colors.jittered(strength, rng.random((count, 3), np.float32))
    found = images.copy()
    colors.recolor(found, matrices, np.repeat(NOTHING, count, axis=0))
    wanted = images[:count] @ matrices[:, None, :, :3].astype(float).swapaxes(2, 3)
    wanted = np.clip(wanted + matrices[:, None, None, :, 3], 0, 255)
    assert np.abs(found[:count] - wanted).max() <= 0.5 + 1e-3
    # OpenCV multiplies by numbers of ten bits.
    for image, matrix, one in zip(images, matrices, found):
        assert np.abs(cv2.transform(image, matrix).astype(int) - one).max() <= 1
    assert (found[count:] == images[count:]).all()


def test_gray_comes_after_the_other_changes() -> None:
    # So that no color is cut off.
    image = np.random.default_rng(1).integers(60, 160, (1, 9, 7, 3), np.uint8)
    matrices = colors.jittered(0.3, np.array([[0.2, 0.4, 0.9]], np.float32))
    found, changed = image.copy(), image.copy()
    colors.recolor(found, colors.grayed(matrices), NOTHING)
    colors.recolor(changed, matrices, NOTHING)
    assert np.abs(found - (changed @ colors.LUMA)[..., None]).max() <= 1
    assert (found[..., 0] == found[..., 2]).all()


@pytest.mark.parametrize("shape", [(112, 112), (31, 47)])
def test_a_square_has_its_place_and_size(shape: tuple[int, int]) -> None:
    draws = np.random.default_rng(2).random((200, 2), np.float32)
    for (top, bottom), (left, right), row, column in (
        (*covered, *place) for covered, place in zip(colors.squares(0.3, draws, *shape), draws)
    ):
        for first, last, middle, side in (
            (top, bottom, row, shape[0]),
            (left, right, column, shape[1]),
        ):
            assert first == max(0, round(float(middle) * side - 0.15 * side))
            assert last == min(side, round(float(middle) * side + 0.15 * side))
    assert (np.diff(colors.squares(0.0, draws, *shape)) == 0).all()


def test_rows_are_changed_as_each_image_is() -> None:
    """With all changes; images are those of a few of the draws."""
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (8, 32, 24, 3), np.uint8)
    change = Augmentation(0.4, 0.3, 0.5, 0.5, 0.5, 0.5)
    draws = drawn_for(change, rng, 20)
    some = change.of_rows(draws, 32, 24)
    for few in (slice(0, 8), slice(8, 16), slice(16, 24)):
        found = images.copy()
        some(found, few)
        own = draws[few]
        for image, one, drawn in zip(images, found, own):
            np.testing.assert_array_equal(one, changed_by(change, image, drawn))
        assert (found[: len(own)] != images[: len(own)]).any(axis=(1, 2, 3)).all()
        assert (found[len(own) :] == images[len(own) :]).all()


def test_no_image_is_changed_beyond_those_there_are() -> None:
    with pytest.raises(AssertionError):
        colors.recolor(np.zeros((1, 4, 4, 3), np.uint8), colors.unchanged(2), NOTHING.repeat(2, 0))
