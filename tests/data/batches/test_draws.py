from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data.batches.draws import seed_words, uniform, uniform32

_numbers = st.one_of(st.integers(0, 2**70), st.integers(0, 3), st.integers(2**32 - 1, 2**32 + 1))


@given(st.lists(_numbers, min_size=1, max_size=7), st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=300, deadline=None)
def test_the_numbers_are_those_of_numpy(seed: list[int], first: int, count: int) -> None:
    expected = np.random.default_rng(seed).random(first + count)[first:]
    numbers = uniform(seed_words(*seed), first, count)
    assert numbers.shape == (count,) and numbers.tobytes() == expected.tobytes()


@given(
    st.lists(_numbers, min_size=1, max_size=4),
    st.integers(0, 30),
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.data(),
)
@settings(max_examples=300, deadline=None)
def test_narrow_numbers_are_those_of_calls_one_behind_the_other(
    seed: list[int], doubles: int, counts: list[int], data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    rng.random(doubles)
    drawn = np.concatenate([rng.random(count, np.float32) for count in counts])
    first = data.draw(st.integers(0, len(drawn)))
    last = data.draw(st.integers(first, len(drawn)))
    found = uniform32(seed_words(*seed), doubles, first, last - first)
    assert found.dtype == np.float32 and found.tobytes() == drawn[first:last].tobytes()
