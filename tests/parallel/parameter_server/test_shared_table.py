from __future__ import annotations

import logging

import numpy as np
import pytest

from parallel.parameter_server.shared_table import FINISHED, LEFT, Attendance, Board, Column


def board(clocks, **columns) -> Board:
    made = Board.empty(len(clocks))
    made.rows[:, Column.CLOCK] = clocks
    for name, values in columns.items():
        made.rows[:, Column[name]] = values
    return made


def test_the_slowest_are_those_who_count() -> None:
    everybody = np.ones(3, np.bool_)
    assert board([5, 3, 9]).slowest(everybody, own=0) == 3
    assert board([5, 3, 9], STATE=[0, FINISHED, 0]).slowest(everybody, own=0) == 5
    assert board([5, 3, 9], STATE=[FINISHED, LEFT, 0]).slowest(everybody, own=2) == 9


def test_what_a_report_tells() -> None:
    shown = board(
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
def test_only_who_is_tolerated_is_given_up(tolerates: bool, caplog) -> None:
    clock = Clock()
    attendance = Attendance(2, "worker", tolerates=tolerates, clock=clock)
    with caplog.at_level(logging.WARNING):
        for step in range(1, 40):
            clock.now += 1
            present = attendance.present(board([step, min(step, 3)]))
            # Its third step was at 3 s; 30 s later it still counts.
            assert present.tolist() == [True, step <= 33 or not tolerates]
    warnings = [record.getMessage() for record in caplog.records]
    expected = ["worker 1 has done nothing for 31 s: the others go on without it"]
    assert warnings == (expected if tolerates else [])


def test_who_is_slow_has_more_time() -> None:
    clock = Clock()
    attendance = Attendance(2, "worker", tolerates=True, clock=clock)
    for _ in range(20):
        clock.now += 10
        steps = (clock.now - 100) // 10
        assert attendance.present(board([steps, min(steps, 2)]))[1] == (clock.now <= 220)


def test_who_validates_or_saves_has_more_time() -> None:
    clock = Clock()
    attendance = Attendance(2, "worker", tolerates=True, clock=clock)
    attendance.present(board([1, 1000]))
    for seconds in (20, 20, 20, 299):
        # Each of its pauses counts, the third one behind 60 s without a step.
        clock.now += seconds
        pauses = [0, (clock.now - 100) // 20 if clock.now <= 160 else 3]
        assert attendance.present(board([clock.now, 1000], PAUSES=pauses)).all()
    clock.now += 2
    assert attendance.present(board([clock.now, 1000], PAUSES=[0, 3])).tolist() == [True, False]


def test_progress_is_what_pushers_do() -> None:
    before = board([5, 3]).progress()
    assert board([5, 3], RATE=7, STALENESS=2, LARGEST=3, LEAD=1).progress() == before
    changed = [board([5, 4]), board([5, 3], PAUSES=[1, 0]), board([5, 3], STATE=[0, FINISHED])]
    assert all(one.progress() != before for one in changed)
    assert board([5, 3], PAUSES=[2, 0]).is_paused.tolist() == [True, False]


def test_who_has_finished_is_not_missed() -> None:
    clock = Clock()
    attendance = Attendance(2, "worker", tolerates=True, clock=clock)
    clock.now += 1000
    assert attendance.present(board([5, 0], STATE=[0, FINISHED])).all()
