"""MXNet's key-value store as a worker uses it: buckets and the shared table, pushed and pulled.

MXNet queues pushes and pulls. Here a push returns when the servers have applied it, and a pull when
the arrays have arrived, so that a step happens in the order of its lines.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from parallel.parameter_server.buckets import Bucket
from parallel.parameter_server.messages import TAIL, Settings
from parallel.parameter_server.shared_table import SharedTable
from runtime.errors import DataError
from runtime.mxnet import mx
from runtime.ndarray import settle


class Store:
    """The arrays of the servers, seen from one worker."""

    def __init__(self, kind: str, buckets: Sequence[Bucket], table: int, pushers: int) -> None:
        """Connect to the scheduler, for dist_sync or dist_async; ``table`` is a key."""
        self._kv = mx.kv.create(kind)
        self._keys = [bucket.key for bucket in buckets]
        self._table_key = table
        self._table = mx.nd.array(SharedTable.empty(pushers).rows.reshape(-1), ctx=mx.cpu())
        self._table_change = self._table.copy()
        # On the CPU, whatever the device is: the store sends from there.
        self.sent = [mx.nd.empty((bucket.size + TAIL,), ctx=mx.cpu()) for bucket in buckets]
        self.received = [array.copy() for array in self.sent]

    def start(self, settings: Settings) -> None:
        """Send the servers the arrays in ``received`` and the settings; all workers together.

        The servers take the arrays of the worker that MXNet numbers 0; the others' are the same.

        Raises:
            DataError: they are not.
        """
        smallest = min(range(len(self._keys)), key=lambda number: self.received[number].size)
        own = self.received[smallest].asnumpy()[:-TAIL]
        self._kv.init(self._keys, self.received)
        self._kv.init(self._table_key, self._table)
        # No worker pushes before all have done this.
        self._kv.pull(self._keys[smallest], out=self.received[smallest])
        # Hosts of different types may round the initial values differently.
        if not np.allclose(self.received[smallest].asnumpy()[:-TAIL], own, rtol=1e-3, atol=1e-4):
            raise DataError(
                f"{socket.gethostname()} begins with other weights than the other hosts: their "
                "--models-root does not hold the same checkpoints; copy the folder of worker 0 to "
                "all of them, or start with --resume never"
            )
        if self._kv.rank == 0:
            self._kv._send_command_to_servers(0, settings.encode())
        self._kv._barrier()

    def push(self) -> None:
        """Push the arrays in ``sent``; returns when all servers have applied them."""
        self._kv.push(self._keys, self.sent)
        for array in self.sent:
            settle(array)

    def pull(self) -> None:
        """Pull weights and tails into ``received``; returns when they have arrived."""
        self._kv.pull(self._keys, out=self.received)
        for array in self.received:
            array.wait_to_read()

    def add_to_table(self, change: NDArray[np.float32]) -> None:
        """Add to the shared table; returns when its server has applied it."""
        self._table_change[:] = change.reshape(-1)
        self._kv.push(self._table_key, self._table_change)
        settle(self._table_change)

    def read_table(self) -> SharedTable:
        """Pull the shared table."""
        self._kv.pull(self._table_key, out=self._table)
        return SharedTable.decode(self._table.asnumpy())
