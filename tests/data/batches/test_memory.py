from __future__ import annotations

import numpy as np

from data.batches.memory import BatchMemory

SHAPE = (4, 3, 8, 8)


def address(array: np.ndarray) -> int:
    place: int = array.__array_interface__["data"][0]
    return place


def test_memory_is_used_again_once_nobody_refers_to_it() -> None:
    memory = BatchMemory()
    first = memory.take(SHAPE)
    place = address(first)
    assert address(memory.take(SHAPE)) != place
    del first
    assert memory.take((2, 3, 8, 8)).shape == (2, 3, 8, 8)
    assert address(memory.take(SHAPE)) == place


def test_what_many_users_have_kept_is_not_kept_for_ever() -> None:
    memory = BatchMemory()
    kept = [memory.take(SHAPE) for _ in range(100)]
    places = {address(one) for one in kept}
    del kept
    again = [memory.take(SHAPE) for _ in range(100)]
    assert sum(address(one) in places for one in again) >= 15 and len(memory._arrays) == 16
