"""The loop: the order of events, their intervals, the learning rate of each update."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from runtime.mxnet import mx
from runtime.stopwatch import WAITING, Stopwatch
from tests.support.steps import FunctionStep
from training.loop import Hooks, Interlude, Updates, fit


class RecordingLog:
    def __init__(self):
        self.updates = []
        self.pauses = 0
        self.ends = []
        self.stopwatch = Stopwatch()

    def reports(self, update):
        return update in (3, 5)

    def start(self, total_updates, update=0):
        assert total_updates == 5

    def update(self, update, *, loss, lr, images, averages):
        self.updates.append((update, loss(), lr, images))

    def end_updates(self):
        self.ends.append(len(self.updates))

    @contextlib.contextmanager
    def paused(self):
        self.pauses += 1
        yield


class TenthOfUpdate:
    def lr_at(self, update):
        return update / 10


def run(step, log, hooks, total=5, batches=None, finish=lambda: None, images=1):
    updates = Updates(TenthOfUpdate(), total=total, images=images)
    return fit(FunctionStep(step, finish), batches or itertools.count(100), updates, log, hooks)


def test_every_update_gets_its_batch_and_rate_and_interludes_their_turn():
    events, log = [], RecordingLog()

    def step(batch, update, lr):
        events.append((batch, update, lr))
        return mx.nd.array([update + 0.5])

    hooks = Hooks(
        [
            Interlude(lambda update: events.append(("verify", update)), 2),
            Interlude(lambda update: events.append(("save", update)), 0),
        ]
    )
    run(step, log, hooks, images=64)
    assert events == [
        (100, 0, 0.0), (101, 1, 0.1), ("verify", 2), (102, 2, 0.2), (103, 3, 0.3), ("verify", 4),
        (104, 4, 0.4), ("verify", 5), ("save", 5),
    ]  # fmt: skip
    assert log.updates == [(update + 1, update + 0.5, update / 10, 64) for update in range(5)]
    assert log.pauses == 4 and log.ends == [5]


def test_only_the_batch_is_waited_for_and_a_device_is_measured_in_reported_updates():
    seconds, measured = [0.0], []

    def batches():
        while True:
            seconds[0] += 0.25
            yield None

    class Log(RecordingLog):
        def update(self, update, **numbers):
            super().update(update, **numbers)
            if self.reports(update):
                self.stopwatch.lap(1.0)

    def step(batch, update, lr):
        seconds[0] += 4.0
        measured.append(log.stopwatch.measures)
        return mx.nd.array([0.0])

    log = RecordingLog()
    log.stopwatch = Stopwatch(lambda: seconds[0])
    run(step, log, Hooks(), batches=batches())
    assert log.stopwatch.lap()[WAITING] == 5 * 0.25
    log = Log()
    log.stopwatch.sample()
    measured.clear()
    run(step, log, Hooks())
    assert measured == [False, False, True, False, True]


@pytest.mark.parametrize(
    ("interval", "origin", "due"),
    [
        (0, 0, [11]), (4, 0, [4, 8, 11]), (5, 0, [5, 10, 11]), (50, 0, [11]),
        (4, -5, [3, 7, 11]), (4, 3, [3, 7, 11]),
    ],
)  # fmt: skip
def test_an_interlude_is_due_at_its_interval_from_its_origin_and_at_the_end(interval, origin, due):
    interlude = Interlude(lambda update: None, interval, origin=origin)
    assert [update for update in range(1, 12) if interlude.is_due(update, 11)] == due


def test_the_run_ends_early_when_it_is_told_to():
    events, log, answers = [], RecordingLog(), iter([0, 0, 143])

    def step(batch, update, lr):
        events.append(update)
        return mx.nd.array([0.0])

    hooks = Hooks(
        [
            Interlude(lambda update: events.append(("verify", update)), 2),
            Interlude(lambda update: events.append(("save", update)), 0, on_stop=True),
        ],
        stop=lambda: next(answers),
    )
    assert run(step, log, hooks) == 143 and log.ends == [3]
    assert events == [0, 1, ("verify", 2), 2, ("save", 3)]


def test_everything_is_known_before_it_is_reported_saved_or_the_run_ends():
    """The parts of the reported updates, 3 and 5, begin with nothing under way, too."""
    events = []

    class Log(RecordingLog):
        def start(self, total_updates, update=0):
            events.clear()

        def update(self, update, **numbers):
            events.append(("log", update))

    def step(batch, update, lr):
        events.append(update + 1)
        return mx.nd.zeros(1)

    def end_to_end(total, stops=()):
        hooks = Hooks(
            [Interlude(lambda update: events.append("saved"), 4)],
            stop=lambda: 143 if len([e for e in events if isinstance(e, int)]) in stops else 0,
        )
        return run(step, Log(), hooks, total, finish=lambda: events.append("known"))

    assert end_to_end(6) == 0
    logged = [("log", update) for update in range(7)]
    assert events[:8] == [1, logged[1], 2, logged[2], "known", 3, "known", logged[3]]
    assert events[8:17] == [4, logged[4], "known", "saved", "known", 5, "known", logged[5], 6]
    assert events[17:] == [logged[6], "known", "saved"]
    assert end_to_end(6, stops={2}) == 143
    assert events == [1, logged[1], 2, logged[2], "known"]


def test_a_finished_run_has_its_interludes_and_no_update():
    log, events = RecordingLog(), []
    interludes = [Interlude(lambda update: events.append((update, log.pauses)), 2)] * 2
    updates = Updates(TenthOfUpdate(), total=5, images=1, start=5)
    fit(None, iter([]), updates, log, Hooks(interludes))
    assert events == [(5, 1), (5, 2)] and log.updates == []
