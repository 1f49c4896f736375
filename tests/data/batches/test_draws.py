from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data.batches.draws import seed_words, uniform, uniform32

_numbers = st.one_of(st.integers(0, 2**70), st.integers(0, 3), st.integers(2**32 - 1, 2**32 + 1))


@given(
    st.lists(_numbers, min_size=1, max_size=7),
    st.integers(0, 40),
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_the_numbers_are_those_of_numpy(
    seed: list[int], doubles: int, counts: list[int], data: st.DataObject
) -> None:
    rng, words = np.random.default_rng(seed), seed_words(*seed)
    expected: np.ndarray = rng.random(doubles)
    first = data.draw(st.integers(0, doubles))
    found = uniform(words, first, doubles - first)
    assert found.shape == (doubles - first,) and found.tobytes() == expected[first:].tobytes()
    # Narrow ones, of calls one behind the other.
    expected = np.concatenate([rng.random(count, np.float32) for count in counts])
    first = data.draw(st.integers(0, len(expected)))
    last = data.draw(st.integers(first, len(expected)))
    found = uniform32(words, doubles, first, last - first)
    assert found.dtype == np.float32 and found.tobytes() == expected[first:last].tobytes()
