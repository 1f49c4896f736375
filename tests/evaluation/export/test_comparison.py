from __future__ import annotations

import numpy as np
import pytest

from evaluation.export.comparison import draw_images, largest_difference


def means(images: np.ndarray) -> np.ndarray:
    return images.mean(axis=(2, 3)).astype(np.float32)


def test_the_difference_is_relative_to_the_largest_element_of_its_image() -> None:
    images = np.zeros((4, 3, 2, 2), np.uint8)
    images[:, 0], images[1, 0], images[:, 2] = 10, 200, 5

    def other(batch: np.ndarray) -> np.ndarray:
        found = means(batch)
        # Of the image with 200: 2 / 200; of the others 0.5 / 10.
        found[:, 1] += np.where(batch[:, 0, 0, 0] == 200, 2.0, 0.5)
        return found

    assert largest_difference(means, other, images, (1,)) == pytest.approx(0.05)
    assert largest_difference(means, other, images[1:2], (1,)) == pytest.approx(0.01)
    assert largest_difference(means, means, images, (1, 3)) == 0


def test_batches_of_each_size_without_the_rest() -> None:
    sizes: list[int] = []

    def noting(batch: np.ndarray) -> np.ndarray:
        sizes.append(len(batch))
        return means(batch)

    largest_difference(noting, means, np.ones((7, 3, 2, 2), np.uint8), (3, 7))
    assert sizes == [3, 3, 7]


def test_what_is_not_finite_differs() -> None:
    images = np.ones((2, 3, 2, 2), np.uint8)
    for wrong in (lambda b: means(b) * np.nan, lambda b: means(b) * np.inf, lambda b: b[:, :2, 0]):
        assert largest_difference(means, wrong, images, (1,)) == float("inf")
        assert largest_difference(wrong, means, images, (1,)) == float("inf")


def test_drawn_images_are_the_same_and_differ_from_each_other() -> None:
    images = draw_images(3, (1, 28, 30))
    assert images.shape == (3, 1, 28, 30) and images.dtype == np.uint8
    np.testing.assert_array_equal(images, draw_images(3, (1, 28, 30)))
    assert np.abs(images[0].astype(int) - images[1]).mean() > 30
    assert images.min() < 20 and images.max() > 235
