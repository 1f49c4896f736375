"""Nobody begins a step when the slowest is too far behind."""

from __future__ import annotations

import random
import threading
import time

import pytest

from parallel.parameter_server.clock import wait_for_slowest
from parallel.parameter_server.shared_table import FINISHED, Attendance, Board, Column

WORKERS, STEPS = 4, 2500


class SharedBoard:
    """A board in memory, and the largest lead with which a step began."""

    def __init__(self) -> None:
        self._rows = Board.empty(WORKERS).rows
        self._lock = threading.Lock()
        self.largest_lead = 0

    def look(self) -> Board:
        with self._lock:
            return Board(self._rows.copy())

    def add(self, worker: int, column: Column, change: int) -> None:
        with self._lock:
            self._rows[worker, column] += change

    def begin(self, worker: int) -> None:
        with self._lock:
            board = Board(self._rows)
            running = ~board.have_reached(FINISHED)
            lead = int(board.clocks[worker] - board.clocks[running].min())
            self.largest_lead = max(self.largest_lead, lead)


def work(board: SharedBoard, worker: int, bound: int | None) -> None:
    rng = random.Random(worker)
    attendance = Attendance(WORKERS, "worker", tolerates=False)
    for _ in range(STEPS):
        board.begin(worker)
        if rng.random() < 0.02:
            time.sleep(rng.uniform(0, 0.002))
        board.add(worker, Column.CLOCK, 1)
        wait_for_slowest(board.look, attendance, worker, bound)
    board.add(worker, Column.STATE, FINISHED)


@pytest.mark.parametrize("bound", [0, 2, 5, None])
def test_the_lead_is_bounded_over_ten_thousand_steps(bound: int | None) -> None:
    board = SharedBoard()
    threads = [
        threading.Thread(target=work, args=(board, worker, bound)) for worker in range(WORKERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert board.look().clocks.sum() == WORKERS * STEPS == 10_000
    if bound is None:
        assert board.largest_lead > 5
    else:
        assert board.largest_lead <= bound


def test_who_is_told_to_stop_waits_no_longer() -> None:
    rows = Board.empty(2).rows
    rows[0, Column.CLOCK], rows[1, Column.STOP] = 9, 143
    attendance = Attendance(2, "worker", tolerates=False)
    board, lead = wait_for_slowest(lambda: Board(rows), attendance, 0, bound=1)
    assert (board.stop, lead) == (143, 9)
