"""The exchange of gradients for weights between two steps of a worker, in any of the schemes.

A worker, alone or as the leader of its group, pushes gradients, adds a step to its row of the
shared table, waits if it is too far ahead of the slowest, and pulls the weights of its next step.
The leader broadcasts them to the members of its group.

Each bucket has a version of its own, the number of its updates: the pushes and pulls of several
workers overlap, so that the buckets of one pull may have had different numbers of updates. A push
sends with each bucket the version that was pulled, from which the server computes the staleness.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from parallel.parameter_server import buckets
from parallel.parameter_server.assignment import Assignment, Scheme, group_of
from parallel.parameter_server.connections import protect
from parallel.parameter_server.messages import (
    TAIL,
    Column,
    FailureDetector,
    PusherState,
    Settings,
    SharedTable,
    Tail,
    Trace,
)
from parallel.world import World
from runtime.errors import DataError
from runtime.mxnet import mx
from runtime.ndarray import memory, settle

# Steps over which images per second are averaged.
_STEPS_OF_RATE = 20
# Seconds between two reads of the table while a worker waits for the end of others.
_POLL_SECONDS = 0.1


class Exchange:
    """The parameter servers, as a training loop sees them.

    Attributes:
        version: updates that all of the weights have had; the learning rate follows from it. It is
            the smallest version of a bucket, which never decreases; a mean would count updates of
            which some buckets have arrived and others not.
        has_started: whether the servers have the weights.
        table: the shared table as it was read last, equal within a group after a step. Another
            thread may look at it while the worker waits.
    """

    def __init__(
        self,
        scheme: Scheme,
        assignment: Assignment,
        group: World,
        *,
        staleness: Optional[int],
        batch_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it; ``start`` connects to the servers.

        Rank 0 of the group, its leader, pushes for all its workers, each with ``batch_size`` images
        in a step. ``staleness`` is the bound of SSP.
        """
        self._scheme, self._group, self._batch_size = scheme, group, batch_size
        self._bound, self._clock = staleness, clock
        self._join(assignment)
        self.version = 0
        self.has_started = False

    def start(
        self,
        parameters: Sequence[Any],
        decays: Sequence[float],
        *,
        momentum: float,
        weight_decay: float,
        version: int,
    ) -> None:
        """Give the servers weights and settings; all workers together.

        The parameters are NDArrays, the same on every worker, which ``step`` overwrites. Each has
        its factor of weight decay in ``decays``; ``version`` updates were made in an earlier run.
        """
        assignment = self._assignment
        self._parameters = parameters
        self._buckets = buckets.plan(
            [parameter.size for parameter in parameters],
            decays,
            assignment.num_servers,
            assignment.server_speeds,
            assignment.bucket_elements,
        )
        self._keys = [bucket.key for bucket in self._buckets]
        self._table_key = buckets.table_key(self._buckets, assignment.num_servers)
        # There are never more groups than workers.
        rows = assignment.num_workers
        self._trace = Trace(assignment.trace, f"worker-{assignment.worker}")
        protect(mx.base._LIB, assignment.key)
        self._store = mx.kv.create("dist_sync" if self._scheme.is_synchronous else "dist_async")
        # On the CPU, whatever the device is: the store sends from there.
        self._table = mx.nd.array(SharedTable.empty(rows).rows.reshape(-1), ctx=mx.cpu())
        self._table_change = self._table.copy()
        sizes = [bucket.size + TAIL for bucket in self._buckets]
        self._sent = [mx.nd.empty((size,), ctx=mx.cpu()) for size in sizes]
        self._received = [array.copy() for array in self._sent]
        self._gather(parameters, [Tail(version)] * len(sizes), self._received)
        decay = {bucket.key: weight_decay * bucket.decay for bucket in self._buckets}
        together = assignment.num_workers if self._scheme.is_synchronous else 1
        self._initialize(Settings(momentum, decay, self._table_key, rows, together))
        self._begin()
        self.has_started = True

    def step(self, gradients: Sequence[Any], lr: float) -> None:
        """Exchange gradients, NDArrays summed over the group, for the weights of the next step."""
        self._row[Column.CLOCK] += 1
        self._row[Column.RATE] = self._rate()
        self._row[Column.PAUSES] = 0
        if self._group.rank == 0:
            tails = [Tail(version, lr, self._pusher) for version in self._versions]
            self._gather(gradients, tails, self._sent)
            self._trace.write("push")
            self._store.push(self._keys, self._sent)
            # MXNet queues a push; the servers have applied it when its arrays are free.
            for array in self._sent:
                settle(array)
            self._send_row()
            self._row[Column.LEAD] = self._detector.wait_for_slowest(
                self._read_table, self._pusher, self._bound
            )
        self._pull()

    def pause(self) -> None:
        """Enter into the table that this worker begins to validate or to save between two steps.

        In BSP all workers together, whose servers hold changes back until all have sent theirs.
        """
        self._row[Column.PAUSES] += 1
        self._send_row()
        if self._scheme.is_synchronous:
            self._read_table()

    def ask_to_stop(self, status: int) -> None:
        """Ask all workers to stop, by the table's change of the next step."""
        self._row[Column.STOP] = status

    def finish(self, *, waits: bool) -> None:
        """Enter into the table that this worker has done its steps.

        A worker that ``waits`` waits for all others and pulls the final weights.
        """
        self._row[Column.STATE] = PusherState.FINISHED
        self._send_row()
        if waits:
            self._wait_for(PusherState.FINISHED)
            self._pull()

    def leave(self) -> None:
        """Enter into the table that this worker needs no other, and wait until none needs it.

        With groups all workers wait for all, because Horovod ends for all at once; without, they
        wait for the first worker, which may be saving and needs the job.
        """
        self._row[Column.STATE] = PusherState.LEFT
        self._send_row()
        self._wait_for(PusherState.LEFT, None if self._scheme.has_groups else 0)

    def clear_table(self) -> None:
        """Set the table to zeros; one worker calls this after all have left."""
        self._read_table()
        self._change_table(-self._table.asnumpy())

    def regroup(self, assignment: Assignment) -> None:
        """Continue in other groups, those of the assignment, with the newest weights.

        All workers call this together, after all have left and the table has been cleared.
        """
        self._join(assignment)
        self._begin()

    def _join(self, assignment: Assignment) -> None:
        """Become one of the pushers, or a member of one's group."""
        self._assignment = assignment
        pushers = self._scheme.pushers(assignment)
        self._pusher = group_of(pushers, assignment.worker)
        self._detector = FailureDetector(len(pushers), tolerates=assignment.tolerates)
        self.table = SharedTable.empty(len(pushers))
        # This pusher's row as it shall be, and as it was sent last.
        self._row: NDArray[np.float32] = self.table.rows[self._pusher].copy()
        self._sent_row = self._row.copy()
        self._step_times: deque[float] = deque(maxlen=_STEPS_OF_RATE + 1)

    def _initialize(self, settings: Settings) -> None:
        """Send the servers the arrays in ``received`` and the settings; all workers together.

        The servers take the arrays of the worker that MXNet numbers 0; the others' are the same.

        Raises:
            DataError: they are not.
        """
        own = self._received[0].asnumpy()[:-TAIL]
        self._store.init(self._keys, self._received)
        self._store.init(self._table_key, self._table)
        # No worker pushes before all have done this.
        self._store.pull(self._keys[0], out=self._received[0])
        # Hosts of different types may round the initial values differently.
        if not np.allclose(self._received[0].asnumpy()[:-TAIL], own, rtol=1e-3, atol=1e-4):
            raise DataError(
                f"{socket.gethostname()} begins with other weights than the other hosts: their "
                "--models-root does not hold the same checkpoints; copy the folder of worker 0 to "
                "all of them, or start with --resume never"
            )
        if self._store.rank == 0:
            self._store._send_command_to_servers(0, settings.encode())
        self._store._barrier()

    def _begin(self) -> None:
        """Pull the weights of the first step."""
        if self._group.rank == 0:
            self._trace.write("pusher", self._pusher, *(bucket.key for bucket in self._buckets))
        self._step_times.append(self._clock())
        self._pull()

    def _read_table(self) -> SharedTable:
        """Read the rows of the pushers; those behind them are not in use."""
        self._store.pull(self._table_key, out=self._table)
        rows = SharedTable.decode(self._table.asnumpy()).rows
        self.table = SharedTable(rows[: len(self.table.rows)])
        return self.table

    def _change_table(self, change: NDArray[np.float32]) -> None:
        """Add to the shared table; returns when its server has applied it."""
        self._table_change[:] = change.reshape(-1)
        self._store.push(self._table_key, self._table_change)
        settle(self._table_change)

    def _send_row(self) -> None:
        if self._group.rank == 0:
            change = SharedTable.empty(self._assignment.num_workers).rows
            change[self._pusher] = self._row - self._sent_row
            self._change_table(change)
            self._sent_row = self._row.copy()

    def _wait_for(self, state: PusherState, pusher: Optional[int] = None) -> None:
        """Wait until all pushers, or one, have reached a state; every worker reads the table."""
        while True:
            table = self._read_table()
            missing = ~table.have_reached(state) & self._detector.alive(table)
            if not (missing.any() if pusher is None else missing[pusher]):
                return
            time.sleep(_POLL_SECONDS)

    def _rate(self) -> float:
        self._step_times.append(self._clock())
        seconds = max(self._step_times[-1] - self._step_times[0], 1e-9)
        images = self._batch_size * self._group.size * (len(self._step_times) - 1)
        return images / seconds

    def _pull(self) -> None:
        """Get weights and versions; in a group from its leader, with the shared table."""
        if self._group.rank == 0:
            self._store.pull(self._keys, out=self._received)
            for array in self._received:
                array.wait_to_read()
        if self._group.size > 1:
            self._share()
        self._scatter()
        tails = (memory(array)[-TAIL:] for array in self._received)
        self._versions = [Tail.decode(tail).version for tail in tails]
        self.version = min(self._versions)
        if self._group.rank == 0:
            self._trace.write("pull", *self._versions)

    def _share(self) -> None:
        """Give what the leader has pulled, weights and the shared table, to all of the group.

        The table travels behind the last bucket: a collective of its own, however small, costs as
        much as that of a small network's weights.
        """
        *others, last = self._received
        for index, array in enumerate(others):
            self._group.broadcast(array, f"exchange.weights.{index}")
        table = mx.nd.array(self.table.rows.reshape(-1), ctx=mx.cpu())
        both = mx.nd.concat(last, table, dim=0)
        self._group.broadcast(both, "exchange.weights_and_table")
        last[:] = both[: last.size]
        self.table = SharedTable.decode(both[last.size :].asnumpy())

    def _gather(self, arrays: Sequence[Any], tails: Sequence[Tail], into: Sequence[Any]) -> None:
        """Copy arrays and tails into the buckets."""
        flat = [array.reshape((-1,)) for array in arrays]
        # One copy for all tails: each copy makes the engine and this thread wait for each other.
        ends = mx.nd.array([tail.encode() for tail in tails], ctx=mx.cpu())
        for number, (bucket, array) in enumerate(zip(self._buckets, into)):
            slices = [
                flat[index][start:stop].as_in_context(mx.cpu())
                for index, start, stop in bucket.slices
            ]
            mx.nd.concat(*slices, ends[number], dim=0, out=array)

    def _scatter(self) -> None:
        """Copy the buckets into the parameters."""
        flat = [parameter.reshape((-1,)) for parameter in self._parameters]
        for bucket, array in zip(self._buckets, self._received):
            offset = 0
            for index, start, stop in bucket.slices:
                flat[index][start:stop] = array[offset : offset + stop - start]
                offset += stop - start
