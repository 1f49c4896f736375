from __future__ import annotations

import pytest

from training.schedules import SCHEDULES, WarmupAndDecay


def test_step_falls_to_a_tenth_at_each_step() -> None:
    schedule = WarmupAndDecay("step", lr=0.4, total_updates=30, steps=(10, 20))
    assert [schedule.lr_at(update) for update in (0, 9)] == [0.4, 0.4]
    assert [schedule.lr_at(update) for update in (10, 19)] == pytest.approx([0.04, 0.04])
    assert [schedule.lr_at(update) for update in (20, 29, 99)] == pytest.approx([0.004] * 3)


def test_factor_and_power_are_chosen() -> None:
    step = WarmupAndDecay("step", lr=0.4, total_updates=30, steps=range(10, 30, 10), factor=0.5)
    assert [step.lr_at(update) for update in (9, 10, 19, 20)] == [0.4, 0.2, 0.2, 0.1]
    poly = WarmupAndDecay("poly", lr=0.4, total_updates=100, power=1.0)
    assert [poly.lr_at(update) for update in (0, 25, 100)] == pytest.approx([0.4, 0.3, 0.0])


def test_poly_is_the_square_of_what_remains() -> None:
    schedule = WarmupAndDecay("poly", lr=0.4, total_updates=100)
    rates = [schedule.lr_at(update) for update in (0, 50, 90, 100)]
    assert rates == pytest.approx([0.4, 0.1, 0.004, 0.0])


def test_cosine_is_half_a_wave() -> None:
    schedule = WarmupAndDecay("cosine", lr=0.4, total_updates=120)
    rates = [schedule.lr_at(update) for update in (0, 40, 60, 120)]
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.0])


@pytest.mark.parametrize("name", SCHEDULES)
def test_warmup_rises_linearly_to_the_full_rate(name: str) -> None:
    schedule = WarmupAndDecay(name, lr=0.4, total_updates=100, warmup=4, steps=(50,))
    rates = [schedule.lr_at(update) for update in range(5)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_decay_starts_after_the_warmup() -> None:
    schedule = WarmupAndDecay("poly", lr=0.4, total_updates=110, warmup=10)
    assert schedule.lr_at(60) == pytest.approx(0.1)
    assert schedule.lr_at(110) == 0.0


def test_steps_count_from_the_start_of_the_run() -> None:
    schedule = WarmupAndDecay("step", lr=0.4, total_updates=100, warmup=10, steps=(50,))
    assert schedule.lr_at(49) == pytest.approx(0.4)
    assert schedule.lr_at(50) == pytest.approx(0.04)


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_never_rise_after_the_warmup(name: str) -> None:
    schedule = WarmupAndDecay(name, lr=0.4, total_updates=60, warmup=5, steps=(20, 40))
    rates = [schedule.lr_at(update) for update in range(5, 70)]
    assert all(later <= earlier for earlier, later in zip(rates, rates[1:]))
    assert min(rates) >= 0.0


@pytest.mark.parametrize("name", SCHEDULES)
def test_run_may_end_within_its_warmup(name: str) -> None:
    schedule = WarmupAndDecay(name, lr=0.4, total_updates=20, warmup=50, steps=(100,))
    rates = [schedule.lr_at(update) for update in range(20)]
    assert rates == pytest.approx([0.4 * (update + 1) / 50 for update in range(20)])
