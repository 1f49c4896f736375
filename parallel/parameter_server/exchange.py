"""Gradients out, weights in: what one worker does between two steps, in any of the schemes.

Alone or for its group, a worker pushes gradients, posts on the board that it has done a step,
waits if it is too far ahead, and pulls the weights with which the next step begins. The members of
a group get what their leader has pulled.

Each bucket has a version of its own, the number of updates that it has had: the pushes and pulls of
several workers overlap, so that the buckets of one pull may have had unequally many. A push returns
with each bucket the version that came with it, from which its server knows how stale the gradient
is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from parallel.parameter_server import buckets
from parallel.parameter_server.assignment import Assignment
from parallel.parameter_server.clock import wait_for_slowest
from parallel.parameter_server.schemes import Scheme, team_of
from parallel.parameter_server.shared_table import FINISHED, LEFT, Attendance, Board, Column
from parallel.parameter_server.store import Store
from parallel.parameter_server.trace import Trace
from parallel.parameter_server.wire import TAIL, Settings, Tail
from parallel.world import World
from runtime.errors import DataError
from runtime.mxnet import mx
from runtime.ndarray import memory

# Steps over which images per second are measured.
_STEPS_OF_RATE = 20
# Seconds between two looks at the board while the end is waited for.
_PAUSE = 0.1


class Exchange:
    """The parameter servers, as a training loop sees them.

    Attributes:
        version: updates that all of the weights have had; the learning rate follows from it. That
            is the smallest version of a bucket: a bucket's version never falls, so neither does
            the smallest, whereas a mean would count updates that are only half there.
        has_started: whether the servers have the weights.
    """

    def __init__(
        self,
        scheme: Scheme,
        assignment: Assignment,
        group: World,
        *,
        staleness: Optional[int],
        images_per_step: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Say how; nobody is talked to before ``start``.

        Args:
            scheme: how workers exchange.
            assignment: this worker's in the job.
            group: the workers that push as one; rank 0 pushes.
            staleness: the bound of SSP, None for none.
            images_per_step: of all workers of the group.
            clock: seconds from any origin.
        """
        self._scheme, self._group = scheme, group
        self._bound, self._clock = staleness, clock
        self._name = "group" if scheme.has_groups else "worker"
        self._take(assignment, images_per_step)
        self.version = 0
        self.has_started = False
        self._expected_pauses = 0

    def start(
        self,
        parameters: Sequence[Any],
        decays: Sequence[float],
        *,
        momentum: float,
        weight_decay: float,
        version: int,
    ) -> None:
        """Begin with equal weights; all workers together.

        Args:
            parameters: NDArrays, which every worker has alike; overwritten by those of one.
            decays: what weight decay is multiplied by for each.
            momentum: of SGD.
            weight_decay: of SGD.
            version: updates that the weights have had in an earlier run.
        """
        assignment = self._assignment
        sizes = [parameter.size for parameter in parameters]
        self._parameters = parameters
        self._buckets = buckets.plan(
            sizes,
            decays,
            assignment.num_servers,
            assignment.server_speeds,
            assignment.bucket_elements,
        )
        key = buckets.board_key(self._buckets, assignment.num_servers)
        # There are never more groups than workers.
        self._store = Store(self._scheme.store, self._buckets, key, assignment.num_workers)
        self._trace = Trace(assignment.trace, f"worker-{assignment.worker}")
        self._note_row()
        tails = [Tail(version)] * len(self._buckets)
        self._gather(parameters, tails, self._store.received)
        decay = {bucket.key: weight_decay * bucket.decay for bucket in self._buckets}
        together = assignment.num_workers if self._scheme.is_synchronous else 1
        self._store.start(Settings(momentum, decay, key, assignment.num_workers, together))
        self._times.append(self._clock())
        self._pull()
        self.has_started = True

    def step(self, gradients: Sequence[Any], lr: float) -> None:
        """Exchange gradients for the weights with which the next step begins.

        Args:
            gradients: NDArrays like the parameters, summed over the group.
            lr: the learning rate.
        """
        self._next[Column.CLOCK] += 1
        self._next[Column.RATE] = self._rate()
        self._next[Column.PAUSES] = 0
        if self._group.rank == 0:
            tails = [Tail(version, lr, self._row) for version in self._versions]
            self._gather(gradients, tails, self._store.sent)
            self._trace.pushed()
            self._store.push()
            self._post()
            _, lead = wait_for_slowest(self._look, self._attendance, self._row, self._bound)
            self._next[Column.LEAD] = lead
        self._pull()
        self._expected_pauses = 0

    def pause(self) -> None:
        """Say that this worker begins something between two steps, for which others may wait.

        Not in BSP, whose servers answer no post before all workers have made theirs.
        """
        self._next[Column.PAUSES] += 1
        if self._group.rank == 0:
            self._post()

    def expect_pause(self) -> None:
        """Know without the board that another worker begins something before its next step."""
        self._expected_pauses += 1

    @property
    def pauses(self) -> int:
        """How many such things of others the present step may have to wait for."""
        return self._expected_pauses or int(self._board.is_paused.any())

    def progress(self) -> bytes:
        """Something that is another one when a look at the board has shown that any came further.

        It can be asked for by another thread while this worker waits.
        """
        return self._board.progress()

    @property
    def stop(self) -> int:
        """The status with which a worker was told to end, or 0; the same for the whole group."""
        return self._board.stop

    def ask_to_stop(self, status: int) -> None:
        """Tell all workers to end, with the next step."""
        self._next[Column.STOP] = status

    def numbers(self) -> dict[str, float]:
        """What a report tells, as of the last step."""
        return self._board.numbers(self._name)

    def finish(self, *, waits: bool) -> None:
        """Say that this worker has done its steps.

        Args:
            waits: for all others, and then gets the last weights.
        """
        self._state(FINISHED)
        if waits:
            self._wait_for(FINISHED)
            self._pull()

    def leave(self) -> None:
        """Say that this worker needs nobody any more, and wait until nobody needs it.

        In groups everybody needs all others, because Horovod ends for all at once; else the first
        worker, which may be saving, needs the job to go on.
        """
        self._state(LEFT)
        self._wait_for(LEFT, None if self._scheme.has_groups else 0)

    def clear_board(self) -> None:
        """Make the board what it was in the beginning; one worker does, after all have left."""
        self._store.post(-self._store.look().rows)

    def regroup(self, assignment: Assignment, images_per_step: int) -> None:
        """Go on in other groups, with the newest weights.

        All workers have left and come here together, after the board has been cleared.

        Args:
            assignment: this worker's, with the new groups.
            images_per_step: of all workers of its group.
        """
        self._take(assignment, images_per_step)
        self._note_row()
        self._times.append(self._clock())
        self._pull()

    def _take(self, assignment: Assignment, images_per_step: int) -> None:
        """Take one's place among those that push."""
        self._assignment, self._images = assignment, images_per_step
        pushers = self._scheme.pushers(assignment)
        self._row = team_of(pushers, assignment.worker)
        self._attendance = Attendance(len(pushers), self._name, tolerates=assignment.tolerates)
        self._board = Board.empty(len(pushers))
        self._posted = self._board.rows[self._row].copy()
        self._next: NDArray[np.float32] = self._posted.copy()
        self._times: deque[float] = deque(maxlen=_STEPS_OF_RATE + 1)

    def _look(self) -> Board:
        """Read the rows of those that push."""
        self._board = Board(self._store.look().rows[: len(self._board.rows)])
        return self._board

    def _state(self, state: int) -> None:
        self._next[Column.STATE] = state
        if self._group.rank == 0:
            self._post()

    def _wait_for(self, state: int, row: Optional[int] = None) -> None:
        """Wait until all, or those of one row, have come so far; every worker looks for itself."""
        while True:
            board = self._look()
            missing = ~board.have_reached(state) & self._attendance.present(board)
            if not (missing.any() if row is None else missing[row]):
                return
            time.sleep(_PAUSE)

    def _post(self) -> None:
        change = Board.empty(self._assignment.num_workers).rows
        change[self._row] = self._next - self._posted
        self._store.post(change)
        self._posted = self._next.copy()

    def _rate(self) -> float:
        self._times.append(self._clock())
        seconds = max(self._times[-1] - self._times[0], 1e-9)
        return self._images * (len(self._times) - 1) / seconds

    def _pull(self) -> None:
        """Take over weights and version; in a group from its leader, the board as well."""
        if self._group.rank == 0:
            self._store.pull()
        if self._group.size > 1:
            for index, array in enumerate(self._store.received):
                self._group.broadcast(array, f"exchange.weights.{index}")
            rows = mx.nd.array(self._board.rows)
            self._group.broadcast(rows, "exchange.board")
            self._board = Board(rows.asnumpy())
        self._scatter()
        self._versions = [self._version_of(array) for array in self._store.received]
        self.version = min(self._versions)
        if self._group.rank == 0:
            self._trace.pulled(self._versions)

    @staticmethod
    def _version_of(received: Any) -> int:
        try:
            return Tail.read(memory(received)[-TAIL:]).version
        except ValueError as error:
            raise DataError(
                f"a parameter server sent a bucket that is none: {error}; look at its lines in the "
                "log, and start the job again"
            ) from None

    def _note_row(self) -> None:
        if self._group.rank == 0:
            self._trace.begin(self._row, [bucket.key for bucket in self._buckets])

    def _gather(self, arrays: Sequence[Any], tails: Sequence[Tail], into: Sequence[Any]) -> None:
        """Lay arrays and tails into the buckets."""
        flat = [array.reshape((-1,)) for array in arrays]
        # One copy for all of them: each makes the engine and this thread wait for each other.
        ends = mx.nd.array([tail.numbers() for tail in tails], ctx=mx.cpu())
        for number, (bucket, array) in enumerate(zip(self._buckets, into)):
            parts = [
                flat[part.parameter][part.start : part.stop].as_in_context(mx.cpu())
                for part in bucket.parts
            ]
            mx.nd.concat(*parts, ends[number], dim=0, out=array)

    def _scatter(self) -> None:
        """Take the parameters out of the buckets."""
        flat = [parameter.reshape((-1,)) for parameter in self._parameters]
        for bucket, array in zip(self._buckets, self._store.received):
            place = 0
            for index, start, stop in bucket.parts:
                flat[index][start:stop] = array[place : place + stop - start]
                place += stop - start
