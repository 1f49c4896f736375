from __future__ import annotations

import itertools
from unittest.mock import MagicMock

import pytest

from data.batches.position import EpochPlan, Position
from runtime.mxnet import mx
from runtime.stopwatch import WAITING, Stopwatch
from tests.support.steps import FunctionStep
from training.loop import Every, Hooks, Updates, fit


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


def run(events, hooks, start=0, batches=None, step=None, log=None):
    """Train; each update, and each wait for all that is under way, is an event."""

    def do(batch, update, lr):
        events.append((batch, update, lr))
        if step is not None:
            step()
        return mx.nd.array([update + 0.5])

    log = log or log_of(events)
    epochs = EpochPlan(640, 64, start)
    updates = Updates(lambda update: update / 10, total=5, images=64, epochs=epochs)
    made = FunctionStep(do, lambda: events.append("known"))
    return log, fit(made, batches or itertools.count(100), updates, log, hooks)


def every(events, name, updates=0, **further):
    return Every(lambda update: events.append((name, update)), updates, **further)


def test_the_order_of_events():
    """All is known before it is reported, before an action, and at the end.

    The parts of the reported updates, 3 and 5, begin with nothing under way, too.
    """
    events: list = []
    log, status = run(events, Hooks([every(events, "verify", 2), every(events, "save")]))

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
    run([], Hooks(), batches=batches(), step=step, log=log)
    assert log.stopwatch.lap()[WAITING] == 5 * 0.25
    log.stopwatch = Stopwatch()
    log.update = lambda update, **_: log.reports(update) and log.stopwatch.lap(1.0)
    log.stopwatch.sample()
    measured.clear()
    run([], Hooks(), step=step, log=log)
    assert measured == [False, False, True, False, True]


@pytest.mark.parametrize(
    ("interval", "start", "due"),
    [
        ({}, (0, 0), []),
        ({"updates": 4}, (0, 0), [4, 8]),
        ({"epochs": 1}, (0, 0), [5, 10]),
        # Epoch 3 begins with update 2, and two updates are left of epoch 2.
        ({"updates": 4}, (2, 30), [4, 8]),
        ({"epochs": 1}, (2, 30), [2, 7]),
        ({"epochs": 2}, (2, 30), [7]),
    ],
)
def test_an_action_is_due_at_its_interval_from_where_epochs_begin(interval, start, due):
    epochs = EpochPlan(50, 10, 0, Position(*start))
    made = Every(lambda update: None, **interval)
    assert [update for update in range(1, 12) if made.is_due(update, epochs)] == due


def test_the_run_ends_early_when_it_is_told_to():
    events, answers = [], iter([0, 0, 143])
    actions = [every(events, "verify", 2), every(events, "save", on_stop=True)]
    log, status = run(events, Hooks(actions, stop=answers.__next__))
    assert status == 143 and events.count("end of updates") == 1
    named = [event[:2] for event in events if event[0] in ("log", "verify", "save")]
    assert named == [("log", 1), ("log", 2), ("verify", 2), ("log", 3), ("save", 3)]
    # Nothing is under way at the end, also if nothing is due then.
    events, answers = [], iter([0, 143])
    run(events, Hooks(stop=answers.__next__))
    assert events[-1] == "known"


def test_a_finished_run_has_its_actions_and_no_update():
    events: list = []
    log, _ = run(events, Hooks([every(events, "verify", 2)] * 2), start=5, batches=iter([]))
    assert [event for event in events if event != "known"][1:] == [("verify", 5)] * 2
    assert log.paused.call_count == 2
