"""What workers and servers send to each other beside gradients and weights.

Arrays are sent as float32, so every other number is as well: each bucket ends in a tail of five. In
a push they are the version that the pusher pulled, its learning rate, its number and a 1 (in a sum
of pushes, the count of its terms); in a pull the version of the weights. A version takes two
numbers, because float32 counts only to 2^24. The settings of training are sent once, as JSON: a
server never unpickles what it receives.

The shared table has a row for each pusher, a worker or the group whose leader pushes for it, and
all workers read it. It is a key of one server that is not trained. After each step a pusher adds
the changes of its row; the server itself fills in the staleness, which it alone knows. The bound of
SSP, the numbers of the log, the agreement to stop and the wait at the end of a run all read it.

A wrong staleness makes training a little worse, and nothing fails. So a job can record every push
and pull (``parallel.launch --trace FOLDER``), from which the staleness of each push is computed
again (``tests/soak``). A server writes a line for each push that it applies, with the version that
the bucket had before: ``bucket pusher sent_version version staleness``. A worker that pushes writes
``pusher NUMBER KEY...``, its number among the pushers and its buckets, and then in turn
``pull VERSION...``, a version for each bucket, and ``push``.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Callable, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from runtime.files import as_data_error, open_kept

_LOW = 1 << 20

# A pusher is given up after these seconds without a step, and these multiples of its usual step.
_SILENCE = 30.0
_SILENT_STEPS = 10
# The same while it validates or saves.
_PAUSE_SILENCE = 300.0
# Seconds between two reads of the table; a read takes a tenth of that.
_POLL_SECONDS = 0.001

TAIL = 5
"""Numbers behind the gradients or weights of a bucket."""


class Tail(NamedTuple):
    """The numbers at the end of a bucket."""

    version: int
    """Updates that the bucket has had; meaningless in a sum of pushes."""
    lr: float = 0.0
    """The learning rate; in a sum of pushes, the sum of theirs."""
    pusher: int = 0
    """The number of the pusher; meaningless in a sum of pushes."""
    pushes: int = 1
    """How many pushes this is the sum of."""

    def encode(self) -> NDArray[np.float32]:
        """As it is sent: float32 [TAIL]."""
        high, low = divmod(self.version, _LOW)
        return np.array([high, low, self.lr, self.pusher, self.pushes], np.float32)

    @classmethod
    def decode(cls, numbers: NDArray[np.float32]) -> Tail:
        """Read a received tail.

        Raises:
            ValueError: the numbers are no tail.
        """
        high, low, lr, pusher, pushes = numbers.tolist()
        counts = (high, low, pusher, pushes)
        # A comparison with NaN is false, and infinity is no integer.
        if not (0 <= lr < math.inf and all(0 <= n and n.is_integer() for n in counts)):
            raise ValueError("no tail")
        return cls(int(high) * _LOW + int(low), lr, int(pusher), int(pushes))


@dataclass(frozen=True)
class Settings:
    """The settings that the servers need before the first push."""

    momentum: float
    weight_decay: Mapping[int, float]
    """By the key of each bucket."""
    table: int
    """The key of the shared table."""
    pushers: int
    """Pushers have numbers from 0 to below this."""
    together: int = 1
    """Pushes that make an update: with BSP those of all workers, which MXNet adds."""

    def encode(self) -> str:
        """As they are sent."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Settings:
        """Read received settings; raises an exception for any other text."""
        fields = json.loads(text)
        decay = {int(key): value for key, value in fields.pop("weight_decay").items()}
        return cls(weight_decay=decay, **fields)


class Column(IntEnum):
    """The columns of the table."""

    CLOCK = 0
    """Steps done."""
    STALENESS = 1
    """Mean staleness of the pusher's gradients; written by the server."""
    LARGEST = 2
    """Largest staleness; written by the server."""
    RATE = 3
    """Images per second of all workers of the pusher."""
    LEAD = 4
    """Steps by which the pusher was ahead of the slowest when it began its latest step."""
    STATE = 5
    """A ``PusherState``."""
    STOP = 6
    """The exit status with which a signal asked the pusher to stop, or 0."""
    PAUSES = 7
    """Validations, saves and the like that the pusher has begun since its latest step."""


class PusherState(IntEnum):
    """How far a pusher is."""

    RUNNING = 0
    FINISHED = 1
    LEFT = 2


# They change when a pusher makes progress.
_PROGRESS = (Column.CLOCK, Column.STATE, Column.PAUSES)


@dataclass(frozen=True)
class SharedTable:
    """The rows at one moment: float32 [pushers, columns]."""

    rows: NDArray[np.float32]

    @classmethod
    def empty(cls, pushers: int) -> SharedTable:
        """The table at the start of a job: zeros."""
        return cls(np.zeros((pushers, len(Column)), np.float32))

    @classmethod
    def decode(cls, numbers: NDArray[np.float32]) -> SharedTable:
        """Shape the array of the store, float32 [pushers · columns]."""
        return cls(numbers.reshape(-1, len(Column)))

    @property
    def clocks(self) -> NDArray[np.float32]:
        """The steps that each pusher has done."""
        return self.rows[:, Column.CLOCK]

    @property
    def stop(self) -> int:
        """The exit status with which any worker was asked to stop, or 0."""
        return int(self.rows[:, Column.STOP].max())

    @property
    def pauses(self) -> int:
        """Validations and saves of others that the current step may have to wait for."""
        return int(self.rows[:, Column.PAUSES].max())

    def have_reached(self, state: PusherState) -> NDArray[np.bool_]:
        """Return True for pushers that are in a state or past it."""
        reached: NDArray[np.bool_] = self.rows[:, Column.STATE] >= state
        return reached

    def progress(self) -> bytes:
        """A value that changes as soon as any pusher makes progress."""
        return self.rows[:, _PROGRESS].tobytes()

    def numbers(self, name: str) -> dict[str, float]:
        """The numbers of a report; ``name`` is what a pusher is called: worker or group."""
        stale = self.rows[self.clocks > 0, Column.STALENESS]
        return {
            "staleness": float(stale.mean()) if stale.size else 0.0,
            "largest_staleness": float(self.rows[:, Column.LARGEST].max()),
            "lead": float(self.rows[:, Column.LEAD].max()),
            **{
                f"images_per_second/{name}_{row}": float(rate)
                for row, rate in enumerate(self.rows[:, Column.RATE])
            },
        }


class FailureDetector:
    """Decides which pushers are alive: those that have lately made progress.

    Without ``tolerates`` all are: the job ends when a worker dies.
    """

    def __init__(
        self, pushers: int, *, tolerates: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tolerates, self._clock = tolerates, clock
        self._start = clock()
        self._seen = SharedTable.empty(pushers)
        self._progressed = np.full(pushers, self._start)

    def alive(self, table: SharedTable) -> NDArray[np.bool_]:
        """Return True for pushers that are alive by the table, which was read just now."""
        now = self._clock()
        changes = table.rows[:, _PROGRESS] != self._seen.rows[:, _PROGRESS]
        self._progressed[changes.any(axis=1)] = now
        self._seen = table
        if not self._tolerates:
            return np.ones(len(self._progressed), np.bool_)
        usual_step = (self._progressed - self._start) / np.maximum(table.clocks, 1)
        is_paused = table.rows[:, Column.PAUSES] > 0
        patience = np.where(is_paused, _PAUSE_SILENCE, _SILENCE)
        is_silent = now - self._progressed > np.maximum(patience, _SILENT_STEPS * usual_step)
        alive: NDArray[np.bool_] = ~is_silent | table.have_reached(PusherState.FINISHED)
        return alive

    def wait_for_slowest(
        self, read: Callable[[], SharedTable], own: int, bound: Optional[int]
    ) -> int:
        """Wait until a pusher is at most ``bound`` steps ahead of the slowest that is alive.

        Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
        Server", NIPS 2013.

        Returns the lead with which the pusher begins its next step. Its ``own`` row has the steps
        that it has done already. Without a bound it does not wait.
        """
        while True:
            table = read()
            counted = self.alive(table) & ~table.have_reached(PusherState.FINISHED)
            counted[own] = True
            lead = int(table.clocks[own] - table.clocks[counted].min())
            if bound is None or lead <= bound or table.stop:
                return lead
            time.sleep(_POLL_SECONDS)


class Trace:
    """The record of one process, if there is a folder for it."""

    def __init__(self, folder: str, name: str) -> None:
        """Open the file ``name``, another for each process; without a folder nothing is written.

        Raises:
            DataError: the file cannot be written.
        """
        self._descriptor: Optional[int] = None
        if folder:
            path = Path(folder, name)
            with as_data_error(f"--trace {folder} cannot be written", "give another folder"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                # Not buffered: servers end by a signal, which would lose the last lines.
                self._descriptor = open_kept(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def write(self, *words: object) -> None:
        """Write a line; a full disk loses it, and does not end the job."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())
