"""The board: a row of numbers for each pusher, which everybody can read.

It lies on a server, as a key that is not trained. A pusher adds what has changed in its row after
each step; how stale its gradients were is known to the server alone, which fills it in. The bound
of SSP, the numbers of the log, the agreement to stop and the wait at the end all read it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Callable

import numpy as np
from numpy.typing import NDArray

_log = logging.getLogger(__name__)

# Seconds, and multiples of a pusher's usual step, after which one that does not move is given up.
_SILENCE = 30.0
_SILENT_STEPS = 10
# Seconds after which one that has begun to validate or to save is given up.
_PAUSE_SILENCE = 300.0


class Column(IntEnum):
    """What stands in a row."""

    CLOCK = 0
    """Steps done."""
    STALENESS = 1
    """Mean staleness of the pusher's gradients; the server's number."""
    LARGEST = 2
    """Largest staleness; the server's number."""
    RATE = 3
    """Images per second of all workers behind the pusher."""
    LEAD = 4
    """Steps by which it was ahead of the slowest when it began its latest step."""
    STATE = 5
    """One of RUNNING, FINISHED and LEFT."""
    STOP = 6
    """The status with which it was told to end, or 0."""
    PAUSES = 7
    """Verifications, saves and the like that it has begun since its latest step."""
    REFUSED = 8
    """Messages of the pusher that were refused; the number of the server of the board alone."""


RUNNING, FINISHED, LEFT = range(3)
# What changes when a pusher comes further.
_MOVEMENT = (Column.CLOCK, Column.STATE, Column.PAUSES)


@dataclass(frozen=True)
class Board:
    """The rows at one moment: float32 [pushers, columns]."""

    rows: NDArray[np.float32]

    @classmethod
    def empty(cls, pushers: int) -> Board:
        """Nobody has done anything."""
        return cls(np.zeros((pushers, len(Column)), np.float32))

    @classmethod
    def read(cls, numbers: NDArray[np.float32]) -> Board:
        """Understand what has travelled, float32 [pushers · columns]."""
        return cls(numbers.reshape(-1, len(Column)))

    @property
    def clocks(self) -> NDArray[np.float32]:
        """The steps that each pusher has done."""
        return self.rows[:, Column.CLOCK]

    @property
    def stop(self) -> int:
        """The status with which somebody was told to end, or 0."""
        return int(self.rows[:, Column.STOP].max())

    def have_reached(self, state: int) -> NDArray[np.bool_]:
        """Who is in a state or past it."""
        reached: NDArray[np.bool_] = self.rows[:, Column.STATE] >= state
        return reached

    def slowest(self, counted: NDArray[np.bool_], own: int) -> int:
        """The fewest steps among the pushers that count; one's own always do."""
        counted = counted & ~self.have_reached(FINISHED)
        counted[own] = True
        return int(self.clocks[counted].min())

    def progress(self) -> bytes:
        """Something that is another one as soon as any pusher has come further."""
        return self.rows[:, _MOVEMENT].tobytes()

    @property
    def is_paused(self) -> NDArray[np.bool_]:
        """Who validates or saves, or makes the update behind that."""
        paused: NDArray[np.bool_] = self.rows[:, Column.PAUSES] > 0
        return paused

    def numbers(self, name: str) -> dict[str, float]:
        """What a report tells; ``name`` is what a pusher is called: worker or group."""
        stale = self.rows[self.clocks > 0, Column.STALENESS]
        refused = float(self.rows[:, Column.REFUSED].sum())
        rates = {
            f"images_per_second/{name}_{row}": float(rate)
            for row, rate in enumerate(self.rows[:, Column.RATE])
        }
        return {
            "staleness": float(stale.mean()) if stale.size else 0.0,
            "largest_staleness": float(self.rows[:, Column.LARGEST].max()),
            "lead": float(self.rows[:, Column.LEAD].max()),
            **({"refused_pushes": refused} if refused else {}),
            **rates,
        }


class Attendance:
    """Which pushers count: with ``tolerates``, one that has not moved for long does not."""

    def __init__(
        self,
        pushers: int,
        name: str,
        *,
        tolerates: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: how many; what one is called; whether any is given up; seconds from any origin."""
        self._name, self._tolerates, self._clock = name, tolerates, clock
        self._began = clock()
        self._seen = Board.empty(pushers)
        self._moved = np.full(pushers, self._began)
        self._warned: set[int] = set()

    def present(self, board: Board) -> NDArray[np.bool_]:
        """Look at the board, and say who counts."""
        now = self._clock()
        changes = board.rows[:, _MOVEMENT] != self._seen.rows[:, _MOVEMENT]
        self._moved[changes.any(axis=1)] = now
        self._seen = board
        if not self._tolerates:
            return np.ones(len(self._moved), np.bool_)
        usual = (self._moved - self._began) / np.maximum(board.clocks, 1)
        patience = np.where(board.is_paused, _PAUSE_SILENCE, _SILENCE)
        silent = now - self._moved > np.maximum(patience, _SILENT_STEPS * usual)
        silent &= ~board.have_reached(FINISHED)
        for row in np.flatnonzero(silent):
            self._warn(int(row), now - self._moved[row])
        present: NDArray[np.bool_] = ~silent
        return present

    def _warn(self, row: int, seconds: float) -> None:
        if row not in self._warned:
            self._warned.add(row)
            _log.warning(
                "%s %d has done nothing for %.0f s: the others go on without it",
                *(self._name, row, seconds),
            )
