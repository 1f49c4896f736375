"""The length and the learning rate of a run that goes on, also with another global batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from data.batches.position import Position
from tests.support.parameters import SavedValues
from training.config.faces import parse
from training.progress import Progress, changed_order
from training.schedules import POLY, SCHEDULES, WarmupAndDecay


def source(global_batch: int, num_images: int = 1000) -> Any:
    updates = num_images // global_batch
    return SimpleNamespace(
        num_images=num_images, global_batch=global_batch, updates_per_epoch=updates
    )


def config(epochs: int):
    return parse(["--dataset", "synthetic", "--epochs", str(epochs)]).schedule


def go_on(config, before: Progress, stop: int, then: int, *changed) -> Progress:
    """The progress of a run that was stopped after so many updates."""
    saved = SavedValues(before.export_state(stop).values)
    return Progress.plan(config, source(then), saved, *changed)


def rates(progress: Progress, *updates: int) -> list[float]:
    schedule = progress.shifted(WarmupAndDecay(POLY, 0.1, progress.schedule_updates))
    return [schedule(update) for update in updates]


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("step", {"total_updates": 30, "steps": (10, 20)},
         {0: 0.4, 9: 0.4, 10: 0.04, 19: 0.04, 20: 0.004, 29: 0.004, 99: 0.004}),
        # Steps count from the start of the run, decay starts after the warmup.
        ("step", {"total_updates": 100, "warmup": 10, "steps": (50,)}, {49: 0.4, 50: 0.04}),
        ("poly", {"total_updates": 110, "warmup": 10}, {60: 0.1, 110: 0.0}),
        ("cosine", {"total_updates": 120}, {0: 0.4, 40: 0.3, 60: 0.2, 120: 0.0}),
    ],
)  # fmt: skip
def test_rates_by_hand(name: str, given: dict[str, Any], expected: dict[int, float]) -> None:
    """Those of published recipes are in config/test_presets.py."""
    schedule = WarmupAndDecay(name, lr=0.4, **given)
    assert {update: schedule(update) for update in expected} == pytest.approx(expected)


@pytest.mark.parametrize("name", SCHEDULES)
def test_warmup_rises_linearly_and_rates_never_rise_after_it(name: str) -> None:
    schedule = WarmupAndDecay(name, lr=0.4, total_updates=60, warmup=4, steps=(20, 40))
    found = [*map(schedule, range(70))]
    assert found[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert found[4:] == sorted(found[4:], reverse=True) and min(found) >= 0.0
    # A run may end within its warmup.
    schedule = WarmupAndDecay(name, lr=0.4, total_updates=20, warmup=50, steps=(100,))
    assert [schedule(n) for n in range(20)] == pytest.approx([0.008 * (n + 1) for n in range(20)])


def test_with_the_same_global_batch_or_a_length_in_updates_nothing_changes() -> None:
    in_updates = parse("--dataset synthetic --max-update 40".split()).schedule
    for length, then in ((config(4), 100), (in_updates, 100), (in_updates, 50)):
        before = Progress.plan(length, source(100))
        after = go_on(length, before, 17, then)
        assert (after.start_update, after.start) == (17, Position(1, 700))
        assert before.total_updates == after.total_updates == 40
        assert after.schedule_shift == 0 and after.schedule_updates == before.schedule_updates == 40


def test_a_length_in_epochs_ends_after_what_is_left_of_them(caplog) -> None:
    caplog.set_level("INFO")
    before = Progress.plan(config(4), source(100))
    after = go_on(config(4), before, 20, 50)
    assert "batch was 100 and is 50: going on at image 0 of epoch 2" in caplog.text
    # Two epochs of ten updates are over; two of twenty are left.
    assert after.total_updates == 20 + 40
    assert rates(after, 20, 40, 60) == [*rates(before, 20, 30), 0]
    # Going on twice keeps the place.
    again = go_on(config(4), after, 30, 50)
    assert (again.total_updates, again.schedule_shift) == (60, after.schedule_shift)
    assert again.start == after.epoch_plan.at(30) == Position(2, 500)


def test_a_period_goes_on_through_another_share() -> None:
    first = Progress.plan(config(6), source(100))
    assert [first.period_end(every) for every in (None, 2, 6, 9)] == [60, 20, 60, 60]
    second = Progress.from_period(config(6), source(50), epoch=2, update=20)
    assert (second.period_end(2), second.total_updates) == (20 + 2 * 20, 20 + 4 * 20)
    assert second.start == Position(2, 0) and rates(first, 20) == rates(second, 20)
    # Fewer images than before, and a period that is the last.
    third = Progress.from_period(config(6), source(250), epoch=4, update=60)
    assert third.period_end(2) == third.total_updates == 60 + 2 * 4
    # Who goes on in the middle of a period meets the others at its end.
    saver = go_on(config(6), first, 27, 100)
    other = go_on(config(6), first, 27, 50).from_epoch(config(6), source(50))
    assert saver.period_end(2) == 40 and other.period_end(2) == 4 * 20
    assert saver.epoch_plan.at(40) == other.epoch_plan.at(80) == Position(4, 0)


@pytest.mark.parametrize("update", [3, 10])
def test_a_checkpoint_of_another_order_is_told_within_an_epoch(caplog, update: int) -> None:
    before = {"seed": 1, "class_balance": 0.5, "lr": 0.1}
    changed = changed_order(before, {"seed": 2, "class_balance": 0.5, "lr": 0.2})
    first = Progress.plan(config(6), source(100))
    go_on(config(6), first, update, 100)
    assert not caplog.messages
    go_on(config(6), first, update, 100, changed)
    line = "--seed 1 is now 2: in the rest of epoch 0, after image 300, images may"
    assert [line in said for said in caplog.messages] == [True] * (update == 3)


def again(first: Progress) -> Progress:
    """Finish a run, and train its schedule of four epochs again."""
    done = go_on(config(4), first, first.total_updates, 100)
    assert done.is_finished and not first.is_finished
    return done.again(config(4), source(100))


def test_a_finished_run_trains_its_schedule_again() -> None:
    first = Progress.plan(config(4), source(100))
    second = again(first)
    assert (second.start_update, second.start, second.total_updates) == (40, Position(4, 0), 80)
    assert (second.epochs_before, second.first_epoch, second.is_finished) == (0, 4, False)
    assert rates(second, *range(40, 81)) == rates(first, *range(41))
    # Interrupted, it goes on with the second schedule.
    third = go_on(config(4), second, 57, 100)
    assert (third.start_update, third.start, third.total_updates) == (57, Position(5, 700), 80)
    assert rates(third, *range(57, 81)) == rates(second, *range(57, 81))
    assert third.epochs_before == 1.7 and third.first_epoch == 4
    # Of a run that was finished within an epoch, as it is given fewer than it had.
    second = go_on(config(1), first, 17, 100).again(config(1), source(100))
    assert (second.start_update, second.start, second.total_updates) == (17, Position(2, 0), 27)


def test_a_schedule_that_is_trained_again_goes_on_with_another_global_batch() -> None:
    second = again(Progress.plan(config(4), source(100)))
    third = go_on(config(4), second, 60, 50)
    assert third.total_updates == 60 + 40 and third.epochs_before == 2
    assert rates(second, 60, 70) == rates(third, 60, 80)
    period = Progress.from_period(config(4), source(50), 6, 60, third.first_epoch)
    assert (period.total_updates, period.schedule_shift) == (100, third.schedule_shift)
    share = third.from_epoch(config(4), source(50))
    assert (share.start_update, share.start, share.total_updates) == (120, Position(6, 0), 160)
    assert rates(share, 120, 159) == rates(third, 60, 99)
