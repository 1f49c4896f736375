from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data.batches.draws import seed_words, uniform

_numbers = st.one_of(st.integers(0, 2**70), st.integers(0, 3), st.integers(2**32 - 1, 2**32 + 1))


@given(st.lists(_numbers, min_size=1, max_size=7), st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=300, deadline=None)
def test_the_numbers_are_those_of_numpy(seed: list[int], first: int, count: int) -> None:
    expected = np.random.default_rng(seed).random(first + count)[first:]
    numbers = uniform(seed_words(*seed), first, count)
    assert numbers.shape == (count,) and numbers.tobytes() == expected.tobytes()
