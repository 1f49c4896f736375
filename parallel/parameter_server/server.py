"""What a server does with a push: momentum SGD that trusts a gradient the less the staler it is.

Staleness Y is the number of updates that a bucket has had since the pusher pulled it, and this one:
at least 1. A server handles one push after the other, so that it is exact. The whole update,
weight decay included, is weighed by 1 / Y (Grouping-SGD; Zhang et al., "Staleness-aware Async-SGD
for Distributed Deep Learning", IJCAI 2016, equation 6). Of a sum of pushes, which the servers of
BSP make, everybody pulled the same version: Y is 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parallel.parameter_server.board import Board, Column
from parallel.parameter_server.wire import TAIL, Settings, Tail
from runtime.mxnet import mx


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

    def __init__(self, settings: Settings) -> None:
        """Args: how to train."""
        self._settings = settings
        self._buckets: dict[int, _Memory] = {}
        self._staleness: dict[int, _Staleness] = {}

    def __call__(self, key: int, pushed: Any, stored: Any) -> None:
        """Apply a push, or in BSP the sum of all, in place.

        Args:
            key: of a bucket, or of the board.
            pushed: gradients and tail, NDArray [elements + TAIL]; or changes of the board.
            stored: weights and tail; or the board.
        """
        if key == self._settings.board:
            self._post(pushed, stored)
        else:
            self._update(key, pushed, stored)

    def _update(self, key: int, pushed: Any, stored: Any) -> None:
        size = stored.size - TAIL
        weights = stored[:size]
        memory = self._buckets.get(key)
        if memory is None:
            begun = Tail.read(stored[size:].asnumpy())
            memory = _Memory(begun.version, mx.nd.zeros_like(weights))
            self._buckets[key] = memory
        tail = Tail.read(pushed[size:].asnumpy())
        staleness = 1
        if tail.pushes == 1:
            staleness = memory.version - tail.version + 1
            assert staleness >= 1, (key, memory.version, tail)
            self._staleness.setdefault(tail.pusher, _Staleness()).add(staleness)
        mx.nd.sgd_mom_update(
            weights,
            pushed[:size],
            memory.momentum,
            lr=tail.lr / tail.pushes / staleness,
            wd=self._settings.weight_decay[key],
            momentum=self._settings.momentum,
            out=weights,
        )
        memory.version += 1
        stored[size:] = Tail(memory.version).numbers()

    def _post(self, pushed: Any, stored: Any) -> None:
        board = Board(stored.asnumpy().reshape(-1, len(Column)))
        rows = board.rows + Board.read(pushed.asnumpy()).rows
        for row in np.flatnonzero((board.clocks > 0) & (rows[:, Column.CLOCK] == 0)):
            # Cleared: another group pushes as this one from here on.
            self._staleness.pop(int(row), None)
        for row in np.flatnonzero(rows[:, Column.CLOCK]):
            found = self._staleness.get(int(row), _Staleness())
            rows[row, Column.STALENESS] = found.mean
            rows[row, Column.LARGEST] = found.largest
        stored[:] = rows.reshape(-1)
