from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.batches.planes import write_planes

_MOST_IMAGES = 8


@given(
    st.integers(1, _MOST_IMAGES),
    st.integers(1, 40),
    # Widths of whole vectors are written otherwise, if the batch is aligned for them.
    st.one_of(st.integers(1, 40), st.sampled_from([16, 32, 48, 112])),
    st.sampled_from([0, 1, 8, 16]),
    st.integers(0, 255),
)
@settings(max_examples=60, deadline=None)
def test_planes_are_those_of_the_images(
    count: int, height: int, width: int, shift: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (_MOST_IMAGES, height, width, 3), np.uint8)
    mirrored = rng.random(count) < 0.5
    memory = np.zeros((count + 2) * 3 * height * width + 32, np.uint8)
    first = -memory.ctypes.data % 16 + shift
    batch = memory[first:][: (count + 2) * 3 * height * width].reshape(-1, 3, height, width)
    write_planes(images, batch[1:-1], mirrored)
    for image, planes, is_mirrored in zip(images, batch[1:-1], mirrored):
        expected = image[:, ::-1] if is_mirrored else image
        assert (planes == expected.transpose(2, 0, 1)).all()
    assert not batch[[0, -1]].any()
    assert not memory[:first].any() and not memory[first + batch.size :].any()


def test_an_image_of_another_size_is_never_written_beyond_its_rows() -> None:
    images = np.ones((_MOST_IMAGES, 5, 5, 3), np.uint8)
    with pytest.raises(ValueError, match="total size"):
        write_planes(images, np.zeros((1, 3, 4, 4), np.uint8), np.zeros(1, bool))
