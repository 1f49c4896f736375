"""The update that a server makes: momentum SGD with a gradient divided by its staleness.

Staleness Y of a push is the number of updates that the bucket has had since the pusher pulled it,
plus 1. A server handles one push after the other, so it counts exactly. The gradient g is
multiplied by 1 / Y; the weight decay is not, because it depends on the server's own weights, which
are never stale: ``m = mu m - lr (g / Y + wd w)``, ``w = w + m``. MXNet-G computes the same (its
``SGD.update`` divides the gradient by batch, workers and Y); the weight 1 / Y is also that of Zhang
et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016, equation 6. For the
sum of pushes that makes an update in BSP, all workers have pulled the same version: Y is 1.

No push of a worker ends a server, because only the servers have the newest weights. One that cannot
be applied is refused: weights, momentum and version stay as they are. Others than the processes of
the job reach no server (``connections``).
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import Any

import numpy as np

from parallel.parameter_server.messages import TAIL, Column, Settings, SharedTable, Tail
from parallel.parameter_server.trace import Trace
from runtime.mxnet import mx
from runtime.ndarray import memory

_log = logging.getLogger(__name__)


class Updater:
    """Applies pushes to the arrays that a server keeps."""

    def __init__(self, settings: Settings, trace: Trace) -> None:
        self._settings, self._trace = settings, trace
        self._momenta: dict[int, Any] = {}
        # As the table, with the number of pushes as the clock and the sum of their staleness.
        self._counts = np.zeros((settings.pushers, len(Column)))
        self._refused: Counter[str] = Counter()

    def __call__(self, key: int, pushed: Any, stored: Any) -> None:
        """Apply a push, or in BSP the sum of all workers' pushes, in place; or refuse it.

        By the key, these are gradients with a tail, NDArray [elements + TAIL], for stored weights
        with a tail; or changes of the shared table, for the table.
        """
        try:
            if key != self._settings.table and key not in self._settings.weight_decay:
                raise ValueError("unknown key")
            if (pushed.size, pushed.dtype) != (stored.size, stored.dtype):
                raise ValueError("wrong size")
            if key == self._settings.table:
                self._update_table(pushed, stored)
            else:
                self._update(key, pushed, stored)
        except ValueError as refused:
            reason = str(refused)
            self._refused[reason] += 1
            count = self._refused[reason]
            # The first of its kind, the second, the fourth and so on.
            if count & (count - 1) == 0:
                _log.warning("refused a message: %s; %d so far", reason, count)

    def _update(self, key: int, pushed: Any, stored: Any) -> None:
        size = stored.size - TAIL
        version = Tail.decode(memory(stored)[size:]).version
        tail = self._checked_tail(pushed)
        staleness = 1
        if self._settings.together == 1:
            staleness = version - tail.version + 1
            if staleness < 1:
                raise ValueError(f"version from the future of pusher {tail.pusher}")
            counts = self._counts[tail.pusher]
            counts[Column.CLOCK] += 1
            counts[Column.STALENESS] += staleness
            counts[Column.LARGEST] = max(counts[Column.LARGEST], staleness)
        self._trace.write(key, tail.pusher, tail.version, version, staleness)
        if key not in self._momenta:
            self._momenta[key] = mx.nd.zeros(size)
        weights = stored[:size]
        mx.nd.sgd_mom_update(
            weights,
            pushed[:size],
            self._momenta[key],
            lr=tail.lr / tail.pushes,
            rescale_grad=1 / staleness,
            wd=self._settings.weight_decay[key],
            momentum=self._settings.momentum,
            out=weights,
        )
        memory(stored)[size:] = Tail(version + 1).encode()

    def _checked_tail(self, pushed: Any) -> Tail:
        """The tail of a push whose numbers, gradients included, are all valid."""
        numbers, together = memory(pushed), self._settings.together
        tail = Tail.decode(numbers[-TAIL:])
        if tail.pushes != together:
            raise ValueError("wrong count")
        if together == 1 and tail.pusher >= self._settings.pushers:
            raise ValueError("unknown pusher")
        gradient = numbers[:-TAIL]
        # The same test as the workers': the sum of squares must not overflow either.
        if not math.isfinite(np.dot(gradient, gradient)):
            raise ValueError("not finite")
        return tail

    def _update_table(self, pushed: Any, stored: Any) -> None:
        change = SharedTable.decode(pushed.asnumpy()).rows
        if not np.isfinite(change).all():
            raise ValueError("not finite")
        table = SharedTable.decode(stored.asnumpy())
        rows = table.rows + change
        # A row was cleared: another group pushes under this number from now on.
        self._counts[(table.clocks > 0) & (rows[:, Column.CLOCK] == 0)] = 0
        active = rows[:, Column.CLOCK] > 0
        counts = self._counts[active]
        means = counts[:, Column.STALENESS] / np.maximum(counts[:, Column.CLOCK], 1)
        # In BSP nothing is counted, and nothing is stale.
        rows[active, Column.STALENESS] = np.maximum(means, 1)
        rows[active, Column.LARGEST] = np.maximum(counts[:, Column.LARGEST], 1)
        stored[:] = rows.reshape(-1)
