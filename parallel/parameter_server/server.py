"""What a server does with a push: momentum SGD that trusts a gradient the less the staler it is.

Staleness Y is the number of updates that a bucket has had since the pusher pulled it, and this one:
at least 1. A server handles one push after the other, so that it is exact. The whole update,
weight decay included, is weighed by 1 / Y (Grouping-SGD; Zhang et al., "Staleness-aware Async-SGD
for Distributed Deep Learning", IJCAI 2016, equation 6). Of a sum of pushes, which the servers of
BSP make, everybody pulled the same version: Y is 1.

No message ends a server, because the newest weights are there and nowhere else: what makes no sense
is refused (see ``refusals``), and weights, momentum and version stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parallel.parameter_server.refusals import Refusals, Refused
from parallel.parameter_server.shared_table import Board, Column
from parallel.parameter_server.trace import Trace
from parallel.parameter_server.wire import TAIL, Settings, Tail
from runtime.mxnet import mx
from runtime.ndarray import memory


@dataclass
class _Staleness:
    """Of one pusher's gradients."""

    total: int = 0
    pushes: int = 0
    largest: int = 1

    def add(self, staleness: int) -> None:
        self.total += staleness
        self.pushes += 1
        self.largest = max(self.largest, staleness)

    @property
    def mean(self) -> float:
        return self.total / self.pushes if self.pushes else 1.0


@dataclass
class _Memory:
    """What a server remembers of a bucket."""

    version: int
    momentum: Any = field(repr=False)


class Updater:
    """Applies pushes to the arrays that a server keeps."""

    def __init__(self, settings: Settings, trace: Trace) -> None:
        """Args: settings: how to train; trace: where what was done is written down."""
        self._settings, self._trace = settings, trace
        self._buckets: dict[int, _Memory] = {}
        self._staleness: dict[int, _Staleness] = {}
        self._refusals = Refusals()

    def __call__(self, key: int, pushed: Any, stored: Any) -> None:
        """Apply a push, or in BSP the sum of all, in place; or refuse it.

        Args:
            key: of a bucket, or of the board.
            pushed: gradients and tail, NDArray [elements + TAIL]; or changes of the board.
            stored: weights and tail; or the board.
        """
        try:
            self._check_form(key, pushed, stored)
            if key == self._settings.board:
                self._post(pushed, stored)
            else:
                self._update(key, pushed, stored)
        except Refused as refused:
            self._refusals.add(refused)

    def refuse_command(self, body: bytes) -> None:
        """Count a command; there is none but the settings, which are given once."""
        self._refusals.add(Refused("unknown command", f"it has {len(body)} bytes"))

    def _check_form(self, key: int, pushed: Any, stored: Any) -> None:
        """Refuse what cannot belong to an array."""
        if key != self._settings.board and key not in self._settings.weight_decay:
            raise Refused("unknown key", f"there is no bucket {key}")
        found, wanted = (f"{array.size} of {np.dtype(array.dtype)}" for array in (pushed, stored))
        if found != wanted:
            raise Refused("wrong size", f"bucket {key} holds {wanted}, and {found} came")

    def _update(self, key: int, pushed: Any, stored: Any) -> None:
        size = stored.size - TAIL
        bucket = self._bucket(key, stored)
        tail = self._tail(key, pushed)
        staleness = 1
        if self._settings.together == 1:
            staleness = bucket.version - tail.version + 1
            if staleness < 1:
                raise Refused(
                    "version from the future",
                    f"it was computed on version {tail.version} of bucket {key}, which has had "
                    f"{bucket.version} updates",
                    tail.pusher,
                )
            self._staleness.setdefault(tail.pusher, _Staleness()).add(staleness)
        self._trace.applied(key, tail.pusher, tail.version, bucket.version, staleness)
        weights = stored[:size]
        mx.nd.sgd_mom_update(
            weights,
            pushed[:size],
            bucket.momentum,
            lr=tail.lr / tail.pushes / staleness,
            wd=self._settings.weight_decay[key],
            momentum=self._settings.momentum,
            out=weights,
        )
        bucket.version += 1
        memory(stored)[size:] = Tail(bucket.version).numbers()

    def _bucket(self, key: int, stored: Any) -> _Memory:
        if key not in self._buckets:
            begun = _read(key, memory(stored)[-TAIL:])
            self._buckets[key] = _Memory(begun.version, mx.nd.zeros(stored.size - TAIL))
        return self._buckets[key]

    def _tail(self, key: int, pushed: Any) -> Tail:
        """The tail of a push that may be applied: all its numbers have been looked at."""
        numbers = memory(pushed)
        tail = _read(key, numbers[-TAIL:])
        together, pushers = self._settings.together, self._settings.pushers
        if tail.pushes != together:
            raise Refused(
                "wrong count", f"it is the sum of {tail.pushes} pushes instead of {together}"
            )
        if together == 1 and tail.pusher >= pushers:
            raise Refused("unknown pusher", f"its pusher is {tail.pusher}, of {pushers}")
        gradient = numbers[:-TAIL]
        # As workers look at theirs: a sum of squares that overflows is nothing to go on with.
        if not math.isfinite(np.dot(gradient, gradient)):
            raise Refused(
                "not finite",
                f"its gradient of bucket {key} is not finite",
                tail.pusher if together == 1 else None,
            )
        return tail

    def _post(self, pushed: Any, stored: Any) -> None:
        change = Board.read(pushed.asnumpy()).rows
        if not np.isfinite(change).all():
            raise Refused("not finite", "its change of the board is not finite")
        board = Board.read(stored.asnumpy())
        rows = board.rows + change
        for row in np.flatnonzero((board.clocks > 0) & (rows[:, Column.CLOCK] == 0)):
            # Cleared: another group pushes as this one from here on.
            self._staleness.pop(int(row), None)
            self._refusals.by_pusher.pop(int(row), None)
        for row in np.flatnonzero(rows[:, Column.CLOCK]):
            found = self._staleness.get(int(row), _Staleness())
            rows[row, Column.STALENESS] = found.mean
            rows[row, Column.LARGEST] = found.largest
            rows[row, Column.REFUSED] = self._refusals.by_pusher[int(row)]
        stored[:] = rows.reshape(-1)


def _read(key: int, numbers: Any) -> Tail:
    try:
        return Tail.read(numbers)
    except ValueError as error:
        raise Refused("no tail", f"for bucket {key}, {error}") from None
