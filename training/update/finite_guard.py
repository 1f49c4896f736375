"""Stops a run, or skips an update, at a loss or a gradient that is not finite.

A run that has diverged would train on for days: every number is NaN by then, also in the last
checkpoints. So every update is checked. Losses and gradients are sums over the ranks,
in which a NaN of one rank is a NaN of all, so the ranks see the same without asking each other.

The look waits for the device. So the numbers of an update are read when the next one is queued: the
device has work while it is judged, and a run that has diverged ends one update later.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from pathlib import Path
from typing import Any, Callable, Optional

from runtime.errors import ConfigError
from runtime.mxnet import mx
from training.update.gradients import Reduced

_log = logging.getLogger(__name__)

# So many skipped updates in a row are no accident of the data.
_MOST_IN_A_ROW = 100


class NonFiniteError(ConfigError):
    """Training has diverged: on every rank alike, and again if it were started again as it is."""


class FiniteGuard:
    """Stops the run at numbers that are not finite, or has the update skipped.

    Attributes:
        skips: True if updates are skipped, which their step then has to make possible.
        skipped: how many were.
    """

    def __init__(
        self,
        on_nan: str = "stop",
        last_good: Callable[[], Optional[Path]] = lambda: None,
        remedy: str = "lower --lr, or try --on-nan skip",
    ) -> None:
        """``last_good`` returns the last checkpoint, for which all ranks ask together.

        ``remedy`` tells the user what to do when the run stops.
        """
        self.skips = on_nan == "skip"
        self.skipped = 0
        self._in_a_row = 0
        self._judge_submitted: Callable[[], bool] = lambda: True
        self._last_good, self._remedy = last_good, remedy

    def submit(self, update: int, loss: Any, reduced: Reduced) -> None:
        """Judge an update, of a loss [1], later, and the one that was submitted before it now.

        Raises:
            NonFiniteError: the one before may not count.
        """
        numbers = mx.nd.concat(loss, *reduced.numbers, dim=0) if reduced.numbers else loss
        self.finish()
        self._judge_submitted = partial(self._judge, update, numbers, reduced)

    def finish(self) -> bool:
        """Return True if the update that was submitted last may count; waits for its numbers.

        Raises:
            NonFiniteError: it may not, and updates are not skipped.
        """
        judge, self._judge_submitted = self._judge_submitted, lambda: True
        return judge()

    def accept(self, update: int, loss: Any, reduced: Reduced) -> bool:
        """Return True if an update may count, judged at once; see ``submit``."""
        self.submit(update, loss, reduced)
        return self.finish()

    def _judge(self, update: int, numbers: Any, reduced: Reduced) -> bool:
        """Read the loss and the numbers of the gradients, [1 + n]."""
        value, *others = numbers.asnumpy().tolist()
        # A loss that is not finite is no overflow of float16, of which ``are_finite`` would tell.
        if math.isfinite(value) and reduced.are_finite(others):
            self._in_a_row = 0
            return True
        what = "a gradient of the backbone is not finite"
        if not math.isfinite(value):
            what = f"the loss is {value}"
        self._in_a_row += 1
        if not self.skips or self._in_a_row > _MOST_IN_A_ROW:
            raise NonFiniteError(self._explain(update, what))
        self.skipped += 1
        _log.warning(
            "update %d skipped: %s; %d skipped in all (--on-nan skip)",
            *(update + 1, what, self.skipped),
        )
        return False

    def _explain(self, update: int, what: str) -> str:
        last = self._last_good()
        saved = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
        skips = f" after {self._in_a_row - 1} skipped updates" if self.skips else ""
        remedy = "lower --lr" if self.skips else self._remedy
        return f"update {update + 1}: {what}{skips}; {saved}; {remedy}"
