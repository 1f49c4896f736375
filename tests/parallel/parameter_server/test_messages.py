from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from parallel.parameter_server.messages import TAIL, Settings, Tail


@pytest.mark.parametrize("version", [0, 2**20 - 1, 2**20, 2**24 + 1, 2**40 + 12345])
def test_a_version_travels_exactly(version: int) -> None:
    numbers = Tail(version, lr=0.25, pusher=3).encode()
    assert numbers.dtype == np.float32 and numbers.shape == (TAIL,)
    assert Tail.decode(numbers) == Tail(version, 0.25, 3, 1)
    total: Any = sum(Tail(7, lr=0.5, pusher=worker).encode() for worker in range(3))
    assert (Tail.decode(total).pushes, Tail.decode(total).lr) == (3, 1.5)


@pytest.mark.parametrize("invalid", [float("nan"), float("inf"), -1.0, 0.5])
@pytest.mark.parametrize("index", range(TAIL))
def test_a_tail_is_whole_numbers_and_a_rate(invalid: float, index: int) -> None:
    numbers = Tail(7, 0.25, 3).encode()
    numbers[index] = invalid
    if (index, invalid) == (2, 0.5):
        assert Tail.decode(numbers).lr == 0.5
    else:
        with pytest.raises(ValueError, match="its tail"):
            Tail.decode(numbers)


def test_settings_travel_as_json() -> None:
    settings = Settings(0.9, {0: 1e-4, 7: 0.0}, table=3, pushers=4, together=4)
    assert Settings.decode(settings.encode()) == settings


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"momentum": "x"}', pickle.dumps(Settings(0.9, {}, 1, 2), 0).decode()]
)
def test_any_other_text_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Settings.decode(text)
