"""Reports, failure detection and SSP's bound, all from the shared table."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from parallel.parameter_server.shared_table import Column, FailureDetector, PusherState, SharedTable


def table(clocks, **columns) -> SharedTable:
    made = SharedTable.empty(len(clocks))
    made.rows[:, Column.CLOCK] = clocks
    for name, values in columns.items():
        made.rows[:, Column[name]] = values
    return made


def test_the_slowest_is_among_the_pushers_that_are_alive_and_running() -> None:
    all_of_them = np.ones(3, np.bool_)
    assert table([5, 3, 9]).slowest(all_of_them, own=0) == 3
    assert table([5, 3, 9], STATE=[0, PusherState.FINISHED, 0]).slowest(all_of_them, own=0) == 5
    ended = [PusherState.FINISHED, PusherState.LEFT, 0]
    assert table([5, 3, 9], STATE=ended).slowest(all_of_them, own=2) == 9


def test_the_numbers_of_a_report() -> None:
    shown = table(
        [4, 2, 0], STALENESS=[1.5, 2.5, 0], LARGEST=[3, 7, 0], RATE=[100, 50, 0], LEAD=[2, 0, 0]
    ).numbers("group")
    assert shown == {
        "staleness": 2.0,
        "largest_staleness": 7.0,
        "lead": 2.0,
        "images_per_second/group_0": 100.0,
        "images_per_second/group_1": 50.0,
        "images_per_second/group_2": 0.0,
    }


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("tolerates", [True, False])
def test_a_silent_pusher_is_given_up_only_with_tolerates(
    tolerates: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    detector = FailureDetector(3, "worker", tolerates=tolerates, clock=clock)
    with caplog.at_level(logging.WARNING):
        for step in range(1, 40):
            clock.now += 1
            states = [0, 0, PusherState.FINISHED]
            alive = detector.alive(table([step, min(step, 3), 0], STATE=states))
            # Its third step was at 3 s; 30 s later it still counts. Who has finished always does.
            assert alive.tolist() == [True, step <= 33 or not tolerates, True]
    warnings = [record.getMessage() for record in caplog.records]
    expected = ["worker 1 has done nothing for 31 s: the others go on without it"]
    assert warnings == (expected if tolerates else [])


def test_a_slow_pusher_and_one_that_validates_or_saves_have_more_time() -> None:
    clock = Clock()
    detector = FailureDetector(2, "worker", tolerates=True, clock=clock)
    for _ in range(20):
        clock.now += 10
        steps = (clock.now - 100) // 10
        assert detector.alive(table([steps, min(steps, 2)]))[1] == (clock.now <= 220)
    clock.now = 100.0
    detector = FailureDetector(2, "worker", tolerates=True, clock=clock)
    detector.alive(table([1, 1000]))
    for seconds in (20, 20, 20, 299):
        # Each of its pauses counts, the third one behind 60 s without a step.
        clock.now += seconds
        pauses = [0, (clock.now - 100) // 20 if clock.now <= 160 else 3]
        assert detector.alive(table([clock.now, 1000], PAUSES=pauses)).all()
    clock.now += 2
    assert detector.alive(table([clock.now, 1000], PAUSES=[0, 3])).tolist() == [True, False]


def test_progress_changes_with_steps_pauses_and_states_alone() -> None:
    before = table([5, 3]).progress()
    assert table([5, 3], RATE=7, STALENESS=2, LARGEST=3, LEAD=1).progress() == before
    finished = table([5, 3], STATE=[0, PusherState.FINISHED])
    changed = [table([5, 4]), table([5, 3], PAUSES=[1, 0]), finished]
    assert all(one.progress() != before for one in changed)
    assert table([5, 3], PAUSES=[2, 0]).is_paused.tolist() == [True, False]


@pytest.mark.parametrize(("bound", "lead"), [(0, 0), (2, 2), (5, 5), (None, 6)])
def test_a_pusher_waits_until_its_lead_is_within_the_bound(bound: int | None, lead: int) -> None:
    detector = FailureDetector(3, "worker", tolerates=False)
    # The others take their steps; one has finished.
    states = [0, PusherState.FINISHED, 0]
    tables = (table([9, 1, clock], STATE=states) for clock in range(3, 12))
    assert detector.wait_for_slowest(lambda: next(tables), 0, bound) == lead
    assert len(list(tables)) == 9 - (7 - lead)


def test_a_stop_ends_the_wait() -> None:
    stopped = table([9, 0], STOP=[0, 143])
    detector = FailureDetector(2, "worker", tolerates=False)
    assert detector.wait_for_slowest(lambda: stopped, 0, bound=1) == 9
