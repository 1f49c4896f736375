"""The loop, and the length and learning rate of a run that goes on."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from data.batches.position import EpochPlan, Position
from runtime.mxnet import mx
from runtime.stopwatch import WAITING, Stopwatch
from tests.support.parameters import SavedValues
from training.config.faces import parse
from training.config.options import POLY, SCHEDULES, FaceScheduleOptions, Schedule
from training.loop import Every, Progress, Updates, fit


def log_of(events) -> MagicMock:
    """A log that notes what it is told; it reports updates 3 and 5."""
    log = MagicMock(stopwatch=Stopwatch())
    log.reports = lambda update: update in (3, 5)
    log.start = lambda total, update=0: events.append(("start", update, total))
    log.end_updates = lambda: events.append("end of updates")
    log.update = lambda update, *, loss, lr, images, averages: events.append(
        ("log", update, loss(), lr, images)
    )
    return log


def run(events, actions=(), start=0, batches=None, step=None, log=None, **more):
    def do(batch, update, lr):
        events.append((batch, update, lr))
        if step is not None:
            step()
        return mx.nd.array([update + 0.5])

    log = log or log_of(events)
    epochs = EpochPlan(640, 64, start)
    plan = {"total": 5, "images": 64, "epochs": epochs, "actions": actions, **more}
    updates = Updates(lambda update: update / 10, **plan)
    made = Mock(side_effect=do, finish=lambda: events.append("known"))
    return log, fit(made, batches or itertools.count(100), updates, log)


def every(events, name, updates=0, **further):
    return Every(lambda update: events.append((name, update)), updates, **further)


def test_the_order_of_events():
    """Reported updates, actions and the end wait for what is under way; so do the parts of 3, 5."""
    events: list = []
    log, status = run(events, [every(events, "verify", 2), every(events, "save")])

    def update(number):
        step = (100 + number - 1, number - 1, (number - 1) / 10)
        line = ("log", number, number - 0.5, (number - 1) / 10, 64)
        return ["known", step, "known", line] if number in (3, 5) else [step, line]

    assert events == [
        ("start", 0, 5), *update(1), *update(2), "known", ("verify", 2), *update(3),
        *update(4), "known", ("verify", 4), *update(5), "end of updates",
        "known", ("verify", 5), "known", ("save", 5),
    ]  # fmt: skip
    assert (status, log.paused.call_count) == (0, 4)


def test_only_the_batch_is_waited_for_and_a_device_is_measured_in_reported_updates():
    seconds, measured, log = [0.0], [], log_of([])

    def batches():
        while True:
            seconds[0] += 0.25
            yield None

    def step():
        seconds[0] += 4.0
        measured.append(log.stopwatch.measures)

    log.stopwatch = Stopwatch(lambda: seconds[0])
    run([], batches=batches(), step=step, log=log)
    assert log.stopwatch.lap()[WAITING] == 5 * 0.25
    log.stopwatch = Stopwatch()
    log.update = lambda update, **_: log.reports(update) and log.stopwatch.lap(1.0)
    log.stopwatch.sample()
    measured.clear()
    run([], step=step, log=log)
    assert measured == [False, False, True, False, True]


@pytest.mark.parametrize(("interval", "start", "due"), [
    ({}, (0, 0), []),
    ({"updates": 4}, (0, 0), [4, 8]),
    ({"epochs": 1}, (0, 0), [5, 10]),
    # Epoch 3 begins with update 2, and two updates are left of epoch 2.
    ({"updates": 4}, (2, 30), [4, 8]),
    ({"epochs": 1}, (2, 30), [2, 7]),
    ({"epochs": 2}, (2, 30), [7]),
])  # fmt: skip
def test_an_action_is_due_at_its_interval_from_where_epochs_begin(interval, start, due):
    epochs = EpochPlan(50, 10, 0, Position(*start))
    made = Every(lambda update: None, **interval)
    assert [update for update in range(1, 12) if made.is_due(update, epochs)] == due


def test_the_run_ends_early_when_it_is_told_to():
    events, answers = [], iter([0, 0, 143])
    actions = [every(events, "verify", 2), every(events, "save", on_stop=True)]
    log, status = run(events, actions, stop=answers.__next__)
    assert status == 143 and events.count("end of updates") == 1
    named = [event[:2] for event in events if event[0] in ("log", "verify", "save")]
    assert named == [("log", 1), ("log", 2), ("verify", 2), ("log", 3), ("save", 3)]
    events, answers = [], iter([0, 143])
    run(events, stop=answers.__next__)
    assert events[-1] == "known"
    # A finished run has its actions and no update.
    events = []
    log, _ = run(events, [every(events, "verify", 2)] * 2, start=5, batches=iter([]))
    assert [event for event in events if event != "known"][1:] == [("verify", 5)] * 2
    assert log.paused.call_count == 2


def source(batch: int) -> Any:
    return SimpleNamespace(num_images=1000, global_batch=batch, updates_per_epoch=1000 // batch)


def config(epochs: int):
    return parse(["--dataset", "synthetic", "--epochs", str(epochs)]).schedule


def go_on(config, before: Progress, stop: int, then: int) -> Progress:
    return Progress.plan(config, source(then), SavedValues(before.export_state(stop).values))


def place(progress: Progress) -> tuple[int, Position, int]:
    return progress.start_update, progress.epoch_plan.start, progress.total_updates


def schedule_of(name: str, **given: Any) -> Schedule:
    options = FaceScheduleOptions(**{"lr": 0.4, "lr_schedule": name, **given})
    return options.build(contributors=1, updates_per_epoch=1000)


def rates(progress: Progress, *updates: int) -> list[float]:
    whole = progress.total_updates + progress.schedule_shift
    schedule = schedule_of(POLY, lr=0.1, max_update=whole)
    return [schedule(update + progress.schedule_shift) for update in updates]


@pytest.mark.parametrize("name", SCHEDULES)
def test_warmup_rises_linearly_and_rates_never_rise_after_it(name: str) -> None:
    schedule = schedule_of(name, max_update=60, warmup=4, lr_steps=(20, 40))
    found = [*map(schedule, range(70))]
    assert found[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert found[4:] == sorted(found[4:], reverse=True) and min(found) >= 0.0
    schedule = schedule_of(name, max_update=20, warmup=50, lr_steps=(100,))
    assert [schedule(n) for n in range(20)] == pytest.approx([0.008 * (n + 1) for n in range(20)])


def test_a_length_in_updates_stays_and_one_in_epochs_ends_after_what_is_left_of_them() -> None:
    in_updates = parse("--dataset synthetic --max-update 40".split()).schedule
    for length, then in ((config(4), 100), (in_updates, 100), (in_updates, 50)):
        before = Progress.plan(length, source(100))
        after = go_on(length, before, 17, then)
        assert place(after) == (17, Position(1, 700), 40) and before.total_updates == 40
        assert after.schedule_shift == 0
    before = Progress.plan(config(4), source(100))
    after = go_on(config(4), before, 20, 50)
    assert after.total_updates == 20 + 40
    assert rates(after, 20, 40, 60) == [*rates(before, 20, 30), 0]
    again = go_on(config(4), after, 30, 50)
    assert (again.total_updates, again.schedule_shift) == (60, after.schedule_shift)
    assert again.epoch_plan.start == after.epoch_plan.at(30) == Position(2, 500)


def test_a_period_goes_on_through_another_share() -> None:
    first = Progress.plan(config(6), source(100))
    assert [first.period_end(every) for every in (None, 2, 6, 9)] == [60, 20, 60, 60]
    second = Progress.from_position(config(6), source(50), 20, Position(2, 0))
    assert (second.period_end(2), second.total_updates) == (20 + 2 * 20, 20 + 4 * 20)
    assert rates(first, 20) == rates(second, 20)
    # Who goes on in the middle of a period meets the others at its end.
    saver = go_on(config(6), first, 27, 100)
    other = go_on(config(6), first, 27, 50).from_epoch(config(6), source(50))
    assert saver.period_end(2) == 40 and other.period_end(2) == 4 * 20
    assert saver.epoch_plan.at(40) == other.epoch_plan.at(80) == Position(4, 0)


def again(first: Progress) -> Progress:
    done = go_on(config(4), first, first.total_updates, 100)
    return done.again(config(4), source(100))


def test_a_finished_run_trains_its_schedule_again() -> None:
    first = Progress.plan(config(4), source(100))
    second = again(first)
    assert place(second) == (40, Position(4, 0), 80)
    assert (second.epochs_before, second.first_epoch) == (0, 4)
    assert rates(second, *range(40, 81)) == rates(first, *range(41))
    third = go_on(config(4), second, 57, 100)
    assert place(third) == (57, Position(5, 700), 80)
    assert rates(third, *range(57, 81)) == rates(second, *range(57, 81))
    assert third.epochs_before == 1.7 and third.first_epoch == 4
    # Of a run that was finished within an epoch, as it is given fewer than it had.
    second = go_on(config(1), first, 17, 100).again(config(1), source(100))
    assert place(second) == (17, Position(2, 0), 27)


def test_a_schedule_that_is_trained_again_goes_on_with_another_global_batch() -> None:
    second = again(Progress.plan(config(4), source(100)))
    third = go_on(config(4), second, 60, 50)
    assert third.total_updates == 60 + 40 and third.epochs_before == 2
    assert rates(second, 60, 70) == rates(third, 60, 80)
    period = Progress.from_position(config(4), source(50), 60, Position(6, 0), third.first_epoch)
    assert (period.total_updates, period.schedule_shift) == (100, third.schedule_shift)
    share = third.from_epoch(config(4), source(50))
    assert place(share) == (120, Position(6, 0), 160)
    assert rates(share, 120, 159) == rates(third, 60, 99)
