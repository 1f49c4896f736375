"""The processes of a run: which make an update together, which save, when they end.

``Ranks`` are those of Horovod, which do everything together. ``ServerWorkers`` overrides what is
different where parameter servers keep the weights, so that a program and ``Run`` need not ask.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from parallel.world import World
from runtime.errors import StopRequest
from runtime.mxnet import mx
from runtime.stopwatch import COMMUNICATION
from training.config.options import Schedule
from training.log.run_log import Throughput
from training.log.watchdog import Others
from training.loop import Progress

Period = tuple[int, int]
"""The first epoch after a rebalancing, and the number of updates before it.

The updates are by the count of worker 0, which names checkpoints."""


class Ranks:
    """The ranks of a Horovod job; all of them make each update together.

    Attributes:
        world: those with whom this process adds gradients, validates and saves.
        everyone: all processes of the job, if they can meet in a collective, or this one.
        number: of this process among all of the job.
        size: of the job.
        contributors: processes whose batches make one update of the weights.
        saves: whether ``world`` validates, and saves models and checkpoints.
        rebalance_interval: epochs between two rebalancings; None for none.
    """

    rebalance_interval: Optional[int] = None

    def __init__(self, world: World) -> None:
        self.world = self.everyone = world
        self.number, self.size = world.rank, world.size
        self.contributors = self.size
        self.saves = True

    def updates_per_epoch(self, own: int) -> int:
        """Updates of the weights in an epoch in which this process makes ``own``."""
        return own

    def start(self, schedule: Schedule, progress: Progress, updates_per_epoch: int) -> Schedule:
        """Begin with the same weights on all processes, which come here together.

        Returns the schedule of the weights' updates by those that the training loop counts.
        """
        return lambda update: schedule(update + progress.schedule_shift)

    def numbers(self) -> dict[str, float]:
        """Return the numbers of a progress report about the other processes."""
        return {}

    def stop(self, request: StopRequest) -> Callable[[], int]:
        """Return a function that tells whether to end now; see ``training.loop.Updates``."""
        return agreed_stop(request, self.world)

    def others(self) -> Others:
        """Return the progress of the processes that this one may have to wait for."""
        return Others()

    def pause(self, update: int) -> None:
        """Announce that the processes that save begin something between two updates.

        Every process calls it, before it validates or saves or would do so.
        """

    def settle(self, update: int) -> None:
        """Let the weights become final, after the last update of this process."""

    def rebalance(
        self, here: Period, throughput: Optional[Throughput], batches: Any
    ) -> Optional[Period]:
        """Meet all processes, and form groups and shares by what each has measured.

        Returns where worker 0 is, from which on ``batches`` reads the new share; None if a worker
        was told to end.
        """
        raise AssertionError("check() lets none but groups rebalance")

    def leave(self, status: int) -> int:
        """End the work together; returns the exit status of the process, or ends it with that."""
        return status


def agreed_stop(request: StopRequest, world: World) -> Callable[[], int]:
    """Return a function that tells whether to end now: the exit status or 0, the same on all ranks.

    A signal reaches the ranks at different moments, or only one of them. A rank that ended alone
    would leave the others waiting in a collective. So each calls the function once after every
    update, and the ranks reduce what they have been asked. The reduction runs while the next update
    is computed and is read when that one is done, so it costs no time, and the run ends one update
    later.
    """
    asked: Any = None

    def agreed() -> int:
        nonlocal asked
        found = 0 if asked is None else int(asked.asscalar())
        asked = mx.nd.array([request.status])
        world.allreduce(asked, "loop.stop", op="max")
        return found

    return agreed


def own_speed(throughput: Optional[Throughput], contributors: int) -> float:
    """Images/s of a worker while it works, not while it waits for others; 0 if unknown.

    Waiting for its own data is work: a machine whose disk is slow is slow. The throughput counts
    the images of all contributors to an update.
    """
    if throughput is None:
        return 0.0
    seconds = throughput.seconds - throughput.parts[COMMUNICATION]
    return throughput.images / contributors / max(seconds, 1e-9)
