from __future__ import annotations

from typing import Any

import pytest

from training.schedules import SCHEDULES, WarmupAndDecay


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("step", {"total_updates": 30, "steps": (10, 20)},
         {0: 0.4, 9: 0.4, 10: 0.04, 19: 0.04, 20: 0.004, 29: 0.004, 99: 0.004}),
        ("step", {"total_updates": 30, "steps": range(10, 30, 10), "factor": 0.5},
         {9: 0.4, 10: 0.2, 19: 0.2, 20: 0.1}),
        # Steps count from the start of the run, decay starts after the warmup.
        ("step", {"total_updates": 100, "warmup": 10, "steps": (50,)}, {49: 0.4, 50: 0.04}),
        ("poly", {"total_updates": 110, "warmup": 10}, {60: 0.1, 110: 0.0}),
        ("poly", {"total_updates": 100}, {0: 0.4, 50: 0.1, 90: 0.004, 100: 0.0}),
        ("poly", {"total_updates": 100, "power": 1.0}, {0: 0.4, 25: 0.3, 100: 0.0}),
        ("cosine", {"total_updates": 120}, {0: 0.4, 40: 0.3, 60: 0.2, 120: 0.0}),
    ],
)  # fmt: skip
def test_rates_by_hand(name: str, given: dict[str, Any], expected: dict[int, float]) -> None:
    schedule = WarmupAndDecay(name, lr=0.4, **given)
    assert {update: schedule(update) for update in expected} == pytest.approx(expected)


@pytest.mark.parametrize("name", SCHEDULES)
def test_warmup_rises_linearly_and_rates_never_rise_after_it(name: str) -> None:
    schedule = WarmupAndDecay(name, lr=0.4, total_updates=60, warmup=4, steps=(20, 40))
    rates = [schedule(update) for update in range(70)]
    assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert rates[4:] == sorted(rates[4:], reverse=True) and min(rates) >= 0.0
    # A run may end within its warmup.
    schedule = WarmupAndDecay(name, lr=0.4, total_updates=20, warmup=50, steps=(100,))
    rates = [schedule(update) for update in range(20)]
    assert rates == pytest.approx([0.4 * (update + 1) / 50 for update in range(20)])
