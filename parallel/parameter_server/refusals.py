"""What a server refuses: counted, and said now and then.

A message that makes no sense must not end a job of many machines, and must not pass unnoticed
either. So a server leaves the weights as they are, counts, and prints a line: for the first message
of a kind, the second, the fourth, the eighth and so on, so that a flood of them stays readable.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Optional

_log = logging.getLogger(__name__)


class Refused(Exception):
    """A message that a server does not obey."""

    def __init__(self, kind: str, reason: str, pusher: Optional[int] = None) -> None:
        """Args: kind: what is counted together; reason: this one's; pusher: its sender's number."""
        super().__init__(reason)
        self.kind, self.pusher = kind, pusher


class Refusals:
    """The messages that a server has refused.

    Attributes:
        by_pusher: how many of each pusher, of those whose sender is known.
    """

    def __init__(self) -> None:
        self._by_kind: Counter[str] = Counter()
        self.by_pusher: Counter[int] = Counter()

    def add(self, refused: Refused) -> None:
        """Count a message, and perhaps say so."""
        self._by_kind[refused.kind] += 1
        if refused.pusher is not None:
            self.by_pusher[refused.pusher] += 1
        count = self._by_kind[refused.kind]
        if count & (count - 1) == 0:
            sender = "" if refused.pusher is None else f" of pusher {refused.pusher}"
            _log.warning(
                "refused a message%s: %s; %d so far because of: %s",
                *(sender, refused, count, refused.kind),
            )
