"""The clock of SSP: nobody begins a step when it is too far ahead of the slowest.

Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
Server", NIPS 2013. A worker's clock is the number of steps that it has done.
"""

from __future__ import annotations

import time
from typing import Callable, Optional

from parallel.parameter_server.shared_table import Attendance, Board

# Seconds between two looks at the board; a look takes a tenth of that.
_PAUSE = 0.001


def wait_for_slowest(
    look: Callable[[], Board],
    attendance: Attendance,
    own: int,
    bound: Optional[int],
) -> tuple[Board, int]:
    """Wait until one's clock is at most ``bound`` steps ahead of the slowest.

    Args:
        look: reads the board.
        attendance: who counts.
        own: one's own row, in which the steps that one has done stand already.
        bound: steps; None does not wait.

    Returns:
        The board as it was read last, and the lead with which the next step begins.
    """
    while True:
        board = look()
        lead = int(board.clocks[own]) - board.slowest(attendance.present(board), own)
        if bound is None or lead <= bound or board.stop:
            return board, lead
        time.sleep(_PAUSE)
