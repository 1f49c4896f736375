"""A server of a job, or the scheduler: ``python -m parallel.parameter_server.server``.

A server makes an update of momentum SGD with a gradient divided by its staleness.

Staleness Y of a push is the number of updates that the bucket has had since the pusher pulled it,
plus 1. A server handles one push after the other, so it counts exactly. The gradient g is
multiplied by 1 / Y; the weight decay is not, because it depends on the server's own weights, which
are never stale: ``m = mu m - lr (g / Y + wd w)``, ``w = w + m``. MXNet-G computes the same (its
``SGD.update`` divides the gradient by batch, workers and Y); the weight 1 / Y is also that of Zhang
et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016, equation 6. For the
sum of pushes that makes an update in BSP, all workers have pulled the same version: Y is 1.

No push of a worker ends a server, because only the servers have the newest weights. One that cannot
be applied is refused: weights, momentum and version stay as they are. MXNet ignores exceptions in
the functions that it calls: here they end the process. Others than the processes of the job reach
no server (``connections``).

With a server's role in the environment, the import of MXNet runs a server, which unpickles what it
receives. So MXNet is imported without the role, and then runs a server with the controller of this
module, which accepts only JSON.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import traceback
from functools import partial
from typing import Any, Callable

import numpy as np

from parallel.parameter_server import assignment
from parallel.parameter_server.connections import protect
from parallel.parameter_server.messages import TAIL, Column, Settings, SharedTable, Tail, Trace
from runtime import environment
from runtime.errors import run_program

with environment.without(assignment.ROLE):
    from runtime.mxnet import mx
    from runtime.ndarray import memory

_log = logging.getLogger(__name__)

_CRASH_STATUS = 1


def main() -> int:
    """Serve until the launcher ends the process."""
    own = assignment.find(environment.variables())
    assert own is not None and own.role != assignment.WORKER, "the launcher starts this program"
    # Refused messages are logged to the standard error, which the launcher prints.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    folder = own.trace if own.role == assignment.SERVER else ""
    trace = Trace(folder, f"server-{os.uname().nodename}-{os.getpid()}")
    protect(mx.base._LIB, own.key)
    store = mx.kv.create("dist")

    def control(_: int, body: bytes, __: Any) -> None:
        """Take the settings, the only command."""
        updater = Updater(Settings.decode(body.decode()), trace)
        store._set_updater(partial(_or_end, updater))

    prototype = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    controller = prototype(partial(_or_end, control))
    mx.base.check_call(mx.base._LIB.MXKVStoreRunServer(store.handle, controller, None))
    return 0


def _or_end(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function; an exception ends the process."""
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(_CRASH_STATUS)


class Updater:
    """Applies pushes to the arrays that a server keeps."""

    def __init__(self, settings: Settings, trace: Trace) -> None:
        self._settings, self._trace = settings, trace
        self._momenta: dict[int, Any] = {}
        # As the table, with the number of pushes as the clock and the sum of their staleness.
        self._counts = np.zeros((settings.pushers, len(Column)))
        self._reasons: set[str] = set()
        """Reasons of refusals that have been logged."""

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
            if str(refused) not in self._reasons:
                self._reasons.add(str(refused))
                _log.warning("refused a message: %s", refused)

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


if __name__ == "__main__":
    run_program(main)
