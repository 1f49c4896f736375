"""The servers' update, on plain arrays: exact staleness, and what it does to the weights."""

from __future__ import annotations

import numpy as np
import pytest

from parallel.parameter_server.board import Board, Column
from parallel.parameter_server.server import Updater
from parallel.parameter_server.wire import TAIL, Settings, Tail
from runtime.mxnet import mx

KEY, BOARD, MOMENTUM, DECAY = 4, 9, 0.9, 0.01
INITIAL = np.array([1.0, -2.0, 3.0], np.float32)


class Server:
    """A bucket and a board, and what the weights should be."""

    def __init__(self, version: int = 0, pushers: int = 3) -> None:
        self._updater = Updater(Settings(MOMENTUM, {KEY: DECAY}, BOARD))
        self._stored = mx.nd.array(np.concatenate([INITIAL, Tail(version).numbers()]))
        self._board = mx.nd.array(Board.empty(pushers).rows.reshape(-1))
        self.expected = INITIAL.astype(np.float64)
        self._memory = np.zeros(3)

    def pull(self) -> int:
        return Tail.read(self._stored.asnumpy()[-TAIL:]).version

    def push(self, gradient: list[float], lr: float, pusher: int, pulled: int) -> None:
        self._apply(np.concatenate([np.float32(gradient), Tail(pulled, lr, pusher).numbers()]))

    def push_sum(self, gradients: list[list[float]], lr: float, pulled: int) -> None:
        self._apply(
            sum(
                np.concatenate([np.float32(gradient), Tail(pulled, lr, pusher).numbers()])
                for pusher, gradient in enumerate(gradients)
            )
        )

    def _apply(self, numbers) -> None:
        self._updater(KEY, mx.nd.array(numbers), self._stored)

    def expect(self, gradient: list[float], lr: float, staleness: int) -> None:
        step = lr / staleness
        total = np.array(gradient) + DECAY * self.expected
        self._memory = MOMENTUM * self._memory - step * total
        self.expected = self.expected + self._memory

    def post(self, pusher: int, steps: int = 1) -> Board:
        change = Board.empty(3).rows
        change[pusher, Column.CLOCK] = steps
        return self._add(change)

    def clear(self) -> Board:
        return self._add(-Board.read(self._board.asnumpy()).rows)

    def _add(self, change) -> Board:
        self._updater(BOARD, mx.nd.array(change.reshape(-1)), self._board)
        return Board.read(self._board.asnumpy())

    def check(self) -> None:
        np.testing.assert_allclose(self._stored.asnumpy()[:-TAIL], self.expected, atol=1e-6)


def test_three_workers_that_pulled_the_same_version() -> None:
    server = Server()
    gradients = [[0.1, 0.2, 0.3], [1.0, -1.0, 0.5], [-0.4, 0.0, 2.0]]
    for worker, gradient in enumerate(gradients):
        server.push(gradient, 0.5, worker, pulled=0)
        server.expect(gradient, 0.5, staleness=worker + 1)
        server.check()
    assert server.pull() == 3


def test_a_scripted_interleaving() -> None:
    """Each line: who pushes, and what staleness its gradient has; then it pulls."""
    server, rng = Server(), np.random.default_rng(3)
    pulled = [0, 0, 0]
    script = [(0, 1), (0, 1), (1, 3), (0, 2), (2, 5), (1, 3), (1, 1), (0, 4), (2, 4)]
    found = {0: [], 1: [], 2: []}
    for worker, staleness in script:
        assert server.pull() - pulled[worker] + 1 == staleness, "the script itself"
        gradient, lr = rng.normal(size=3).tolist(), float(rng.uniform(0.1, 0.5))
        server.push(gradient, lr, worker, pulled[worker])
        server.expect(gradient, np.float32(lr), staleness)
        server.check()
        pulled[worker] = server.pull()
        found[worker].append(staleness)
        board = server.post(worker)
        assert board.rows[worker, Column.STALENESS] == pytest.approx(np.mean(found[worker]))
        assert board.rows[worker, Column.LARGEST] == max(found[worker])
    assert board.clocks.tolist() == [4, 3, 2]


def test_a_sum_of_pushes_is_one_update_and_not_stale() -> None:
    server = Server()
    for pulled in range(3):
        server.push_sum([[1.0, 0.0, 0.5]] * 3, 0.1, pulled)
        server.expect([3.0, 0.0, 1.5], 0.1, staleness=1)
        server.check()
        board = server.post(1)
    assert server.pull() == 3
    assert board.rows[1, Column.STALENESS] == board.rows[1, Column.LARGEST] == 1


def test_a_run_that_goes_on_counts_from_its_version() -> None:
    server = Server(version=2**24 + 5)
    server.push([1.0, 1.0, 1.0], 0.1, 0, pulled=2**24 + 5)
    server.push([1.0, 1.0, 1.0], 0.1, 1, pulled=2**24 + 5)
    server.expect([1.0, 1.0, 1.0], 0.1, staleness=1)
    server.expect([1.0, 1.0, 1.0], 0.1, staleness=2)
    server.check()
    assert server.pull() == 2**24 + 7


def test_a_version_from_the_future_is_an_error() -> None:
    with pytest.raises(AssertionError):
        Server().push([1.0, 1.0, 1.0], 0.1, 0, pulled=1)


def test_who_pushes_next_as_a_cleared_row_begins_without_staleness() -> None:
    server = Server()
    for _ in range(3):
        server.push([1.0, 1.0, 1.0], 0.1, 0, pulled=0)
    assert server.post(0).rows[0, Column.LARGEST] == 3
    assert not server.clear().rows.any()
    server.push([1.0, 1.0, 1.0], 0.1, 0, pulled=3)
    # Another row's post does not forget what has not been posted yet.
    server.post(1)
    assert server.post(0).rows[0, Column.LARGEST] == 1
    assert server.pull() == 4


def test_posts_add_up_by_row() -> None:
    server = Server()
    server.post(0, steps=2)
    assert server.post(2).clocks.tolist() == [2, 0, 1]
