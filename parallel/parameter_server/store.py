"""MXNet's store as a worker uses it: buckets and the board, pushed and pulled.

MXNet queues pushes and pulls. Here a push returns when the servers have applied it, and a pull when
everything is there, so that the order of a step is that of its lines.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from parallel.parameter_server.buckets import Bucket
from parallel.parameter_server.shared_table import Board
from parallel.parameter_server.wire import TAIL, Settings
from runtime.mxnet import mx
from runtime.ndarray import wait_until_unused


class Store:
    """The servers, seen from one worker."""

    def __init__(self, kind: str, buckets: Sequence[Bucket], board: int, pushers: int) -> None:
        """Meet the scheduler.

        Args:
            kind: dist_sync or dist_async.
            buckets: what the servers keep.
            board: the key of the board.
            pushers: its rows.
        """
        self._kv = mx.kv.create(kind)
        self._keys = [bucket.key for bucket in buckets]
        self._board_key = board
        self._board = mx.nd.array(Board.empty(pushers).rows.reshape(-1), ctx=mx.cpu())
        self._sent_board = self._board.copy()
        # Of the CPU, whatever the device is: what is pushed lies there anyway.
        self.sent = [mx.nd.empty((bucket.size + TAIL,), ctx=mx.cpu()) for bucket in buckets]
        self.received = [array.copy() for array in self.sent]

    def start(self, settings: Settings) -> None:
        """Give the servers what is in ``received`` and the settings; all workers together.

        One of the workers, MXNet's first, gives its arrays; the others' have to be the same.
        """
        self._kv.init(self._keys, self.received)
        self._kv.init(self._board_key, self._board)
        if self._kv.rank == 0:
            self._kv._send_command_to_servers(0, settings.encode())
        self._kv._barrier()

    def push(self) -> None:
        """Push what is in ``sent``; returns when all servers have applied it."""
        self._kv.push(self._keys, self.sent)
        for array in self.sent:
            wait_until_unused(array)

    def pull(self) -> None:
        """Pull weights and tails into ``received``; returns when they are there."""
        self._kv.pull(self._keys, out=self.received)
        for array in self.received:
            array.wait_to_read()

    def post(self, change: NDArray[np.float32]) -> None:
        """Add to the board; returns when its server has done so."""
        self._sent_board[:] = change.reshape(-1)
        self._kv.push(self._board_key, self._sent_board)
        wait_until_unused(self._sent_board)

    def look(self) -> Board:
        """Read the board."""
        self._kv.pull(self._board_key, out=self._board)
        return Board.read(self._board.asnumpy())
